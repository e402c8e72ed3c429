"""Audits of clipped gradients whose norms follow from dense layers, and transcripts of such gradients."""

import numpy as np
import pytest
from audited import smaller
from cases import sparing

from fedprivjax import Federation, Full, NoisyMinibatchSGD, NoisySGD, Refusal, audit, transcript
from fedprivjax.problem.dense_layers import Layered

LOSSES = pytest.mark.parametrize("loss", sparing(["linear", "quadratic"], ["linear"]))


@pytest.fixture
def halved(monkeypatch):
    norm = Layered.norm
    monkeypatch.setattr(Layered, "norm", lambda self: norm(self) / 2)


def audited(dimension, loss, monkeypatch):
    """Return an audit with norms of dense layers. Each dimension has a program of its own."""
    smaller(monkeypatch, preparing=1024)
    federation = Federation(Full(1), rounds=1, records=1, dimension=dimension, loss=loss)
    return audit(NoisySGD(mu=2.0, clip=0.5), federation, clipping="ghost", runs=2000)


@LOSSES
def test_norms_of_dense_layers_are_not_refuted(loss, monkeypatch):
    found = audited(6, loss, monkeypatch)
    assert not found.refuted
    assert found.tightness > 0.7


@LOSSES
def test_half_the_norm_is_refuted(loss, monkeypatch, halved):
    assert audited(8, loss, monkeypatch).refuted


def sent(clipping, dimension):
    """Return the messages of two machines, of which the first has a long gradient and one that is 0."""
    federation = Federation(Full(2), 3, 2, dimension, dense=True, clipping=clipping)
    method = NoisyMinibatchSGD(epsilon=np.inf, sampler="full", clip=0.5, step_size=0.1)
    return transcript(method, federation.problem(0.5, True, 0, 1.0), Full(2), rounds=3).messages


def test_messages_of_a_transcript_are_clipped_means_of_rows():
    np.testing.assert_allclose(sent("ghost", 12), sent("rows", 12), rtol=2e-5, atol=1e-7)
    assert np.linalg.norm(sent("ghost", 12), axis=-1).max() == pytest.approx(0.25, rel=2e-5)


def test_a_wrong_norm_shows_in_a_transcript(halved):
    assert np.linalg.norm(sent("ghost", 14), axis=-1).max() == pytest.approx(0.5, rel=2e-5)


def test_settings_without_a_dense_layer_are_refused():
    with pytest.raises(Refusal, match=r"leaves must be 2 or None with clipping 'ghost', got 1. Leave it out"):
        Federation(Full(1), 1, 1, leaves=1, clipping="ghost")
    with pytest.raises(Refusal, match="unknown clipping 'gost'"):
        Federation(Full(1), 1, 1, clipping="gost")
