"""Disk cache of fitted factors."""

from functools import partial

import numpy as np
import pytest

from fedprivjax import Full
from fedprivjax.noise import message_factors
from fedprivjax.noise.factors import matrices
from fedprivjax.noise.message_factors import Optimal, anytime_workload


@pytest.fixture(autouse=True)
def folder(keeping):
    return keeping / "factors"


@pytest.fixture
def fitted(monkeypatch):
    """Return the list of arguments of every fit."""
    calls, fit = [], message_factors.optimal_factor

    def counted(*arguments):
        calls.append(arguments)
        return fit(*arguments)

    monkeypatch.setattr(message_factors, "optimal_factor", counted)
    return calls


def made(rounds=6, share=1.0, iterations=3):
    schedule = Full(2).draw(rounds, np.random.default_rng(0))
    return Optimal(iterations).matrix(rounds, partial(anytime_workload, schedule, np.array([1.0, share])))


def test_it_is_fitted_once(folder, fitted):
    first = made()
    np.testing.assert_array_equal(made(), first)
    assert len(fitted) == len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("other", [{"rounds": 5}, {"share": 0.5}, {"iterations": 4}])
def test_every_argument_makes_another(fitted, other):
    made()
    made(**other)
    assert len(fitted) == 2


def test_other_code_makes_another(fitted, monkeypatch):
    made()
    monkeypatch.setattr(matrices, "code_digest", lambda *folders, packages: "mended")
    made()
    assert len(fitted) == 2


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda right: 1.1 * right,
        lambda right: 0.5 * right,
        lambda right: right.T,
        lambda right: np.zeros_like(right),
        lambda right: np.full_like(right, np.nan),
        lambda right: right[:-1, :-1],
        lambda right: right.astype(np.float32),
        lambda right: np.array("text"),
    ],
)
def test_an_invalid_cached_factor_is_fitted_again(folder, fitted, spoilt):
    right = made()
    (path,) = folder.iterdir()
    np.save(path, spoilt(right))
    np.testing.assert_array_equal(made(), right)
    np.testing.assert_array_equal(np.load(path), right)
    assert len(fitted) == 2
