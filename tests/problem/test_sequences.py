"""Sequences: losses and accuracies of tokens against NumPy, padding without effect, and networks on tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from fedprivjax import (
    LSTM,
    MLP,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    Softmax,
    features,
    from_dataset,
    linear_problem,
    simulate,
)
from fedprivjax.datasets import encode, from_sequences
from fedprivjax.engine import chunked_sums
from fedprivjax.engine.client_metrics import client_outcomes
from fedprivjax.engine.metric import Snapshot
from fedprivjax.problem.predictor import predictor_of
from fedprivjax.problem.sequences import TokenLoss

RNG = np.random.default_rng(0)
TOKENS, LENGTH = 5, 7
RAGGED = [RNG.integers(0, TOKENS, size).tolist() for size in (7, 1, 3, 6, 2, 9, 4, 5)]
TESTS = [RNG.integers(0, TOKENS, size).tolist() for size in (1, 5, 2, 7, 7, 1)]
OWNERS = [0, 0, 0, 1, 1, 2, 2, 2]


class Before(nn.Module):
    """Scores of each token from the sum of the embeddings of the tokens before it."""

    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(TOKENS)(jnp.cumsum(nn.Embed(TOKENS + 1, 4)(inputs), axis=1))


class Attention(nn.Module):
    """A block of causal attention that does not see the padding, and scores of each token."""

    @nn.compact
    def __call__(self, inputs):
        length = inputs.shape[-1]
        values = nn.Embed(TOKENS + 1, 4)(inputs) + nn.Embed(length, 4)(jnp.arange(length))[None]
        mask = nn.combine_masks(nn.make_causal_mask(inputs), nn.make_attention_mask(inputs >= 0, inputs != TOKENS))
        return nn.Dense(TOKENS)(values + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(values), mask=mask))


def data():
    return from_sequences(
        RAGGED, None, TESTS, tokens=TOKENS, length=LENGTH, machine_of=OWNERS, test_machine_of=[0, 0, 1, 1, 2, 2]
    )


def by_hand(problem, network, rows):
    """Return the mean loss and the accuracy over all tokens, and the loss of each sequence, without any padding."""
    losses, correct = [], []
    for row in rows:
        tokens = np.array(row[:LENGTH])
        inputs = jnp.array([[TOKENS, *tokens[:-1]]])
        scores = np.asarray(network.apply({"params": problem.start}, inputs)[0], np.float64)
        logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        losses.append(-logs[np.arange(len(tokens)), tokens])
        correct.append(scores.argmax(axis=1) == tokens)
    return np.concatenate(losses).mean(), np.concatenate(correct).mean(), [each.mean() for each in losses]


@pytest.mark.parametrize("at_once", [pytest.param(chunked_sums.CHUNK_NUMBERS, marks=pytest.mark.slow), 100])
def test_metrics_are_means_over_tokens_and_a_records_loss_the_mean_over_its_own(monkeypatch, at_once):
    monkeypatch.setattr(chunked_sums, "CHUNK_NUMBERS", at_once)
    problem = from_dataset(data(), network=Before())
    found = jax.jit(lambda start: [chunked_sums.outcomes(problem, Snapshot(start), of) for of in ("test", "pool")])
    for (loss, accuracy), rows in zip(found(problem.start), (TESTS, RAGGED), strict=True):
        *wanted, each = by_hand(problem, Before(), rows)
        assert [loss, accuracy] == pytest.approx(wanted, rel=1e-5)
    clients = client_outcomes(problem, Snapshot(problem.start), own=False)
    wanted = [by_hand(problem, Before(), TESTS[2 * client : 2 * client + 2])[:2] for client in range(3)]
    np.testing.assert_allclose(np.transpose(clients), wanted, rtol=1e-5)
    values = jax.vmap(lambda row: problem.model.value(problem.start, problem.take(row)))(np.arange(len(RAGGED)))
    np.testing.assert_allclose(values, each, rtol=1e-5)


@pytest.mark.slow
def test_longer_padding_changes_no_loss_and_no_gradient():
    network = LSTM((3,), embedding=2)
    short, longer = (
        from_dataset(from_sequences(RAGGED[1:5], None, tokens=TOKENS, length=size), network=network) for size in (6, 11)
    )
    for row in range(4):
        one, other = (
            jax.jit(jax.value_and_grad(problem.model.value))(short.start, problem.take(row))
            for problem in (short, longer)
        )
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-7), one, other)


@pytest.mark.slow
def test_the_class_of_a_sequence_is_read_at_its_last_token():
    rows, network = [row[:LENGTH] for row in RAGGED], LSTM((3,), embedding=2)
    labels = RNG.integers(0, 3, len(rows))
    made = from_sequences(rows, labels, tokens=TOKENS, length=LENGTH, classes=3)
    problem = from_dataset(made, network=network)
    full = network.clone(scores=3, tokens=TOKENS + 1, each=False)
    for index, row in enumerate(rows):
        scores = full.apply({"params": problem.start}, jnp.array([row]))[0]
        wanted = Softmax(3).value(scores, labels[index])
        assert float(problem.model.value(problem.start, problem.take(index))) == pytest.approx(float(wanted), rel=1e-5)


def test_labels_of_tokens_may_be_given_and_some_left_out():
    tags = [[1, -1, 0], [-1, 1]]
    made = from_sequences([[0, 1, 2], [2, 1]], tags, tokens=3, length=3, classes=2)
    assert made.labels.tolist() == [[1, -1, 0], [-1, 1, -1]]
    loss, scores = TokenLoss(Logistic()), np.array([0.5, 9.0, -0.2])
    wanted = np.mean(
        [Logistic().value(np.float32(0.5), np.float32(1)), Logistic().value(np.float32(-0.2), np.float32(0))]
    )
    assert float(loss.value(scores, made.labels[0])) == pytest.approx(float(wanted), rel=1e-6)
    assert float(loss.correct(scores, made.labels[0])) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("network", [LSTM((3,), embedding=2), Attention()], ids=["lstm", "attention"])
def test_a_record_is_clipped_as_a_whole_sequence(network):
    problem, clip, step = from_dataset(data(), network=network), 0.05, 0.5
    method = NoisyMinibatchSGD(epsilon=np.inf, clip=clip, step_size=step, sampler="full", window=1)
    run = simulate(method, problem, Full(3), rounds=1, seed=3)
    machines = []
    for machine in range(3):
        grads = [
            jax.grad(problem.model.value)(problem.start, problem.take(row))
            for row in np.flatnonzero(np.array(OWNERS) == machine)
        ]
        flat = np.array([ravel_pytree(each)[0] for each in grads])
        machines.append((flat * np.minimum(1, clip / np.linalg.norm(flat, axis=1, keepdims=True))).mean(axis=0))
    wanted = ravel_pytree(problem.start)[0] - step * np.mean(machines, axis=0)
    np.testing.assert_allclose(ravel_pytree(run.params)[0], wanted, rtol=1e-5, atol=1e-6)


def test_predictions_are_of_each_token():
    problem, rows = from_dataset(data(), network=Before()), data().test_features
    found = predictor_of(problem).predict(problem.start, rows)
    np.testing.assert_array_equal(found, Before().apply({"params": problem.start}, rows).argmax(axis=-1))


def test_characters_and_words_become_tokens():
    assert encode(["", "aé", "abcd"], "cba", 3).tolist() == [[4, 4, 4], [2, 3, 4], [2, 1, 0]]
    assert encode(["", " a  bb\tc\n", "bb a x x"], ["a", "bb"], 3).tolist() == [[3, 3, 3], [0, 1, 2], [1, 0, 2]]


def make(rows=RAGGED, labels=None, **options):
    return from_sequences(rows, labels, **{"tokens": TOKENS, "length": LENGTH, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make([[0, 5, 1, 6]]), "tokens must lie in 0..4, got 6"),
        (lambda: make([[0, -1]]), "tokens must lie in 0..4, got -1"),
        (lambda: make([[0, 1], []]), "sequences must have a token with a label each, got none in row 1. Leave it out"),
        (lambda: make([[0.5, 1]]), "sequences must be lists of whole numbers, got float64 of shape (2,)"),
        (lambda: make([[[0], [1]]]), "sequences must be lists of whole numbers, got int64 of shape (2, 1)"),
        (lambda: make(length=0), "length must be at least 1, got 0"),
        (lambda: make(labels=[0] * 8), "labels must go with classes, got one of them. Give both"),
        (lambda: make(classes=3), "labels must go with classes, got one of them. Give both"),
        (
            lambda: make(labels=[0, 1], classes=2),
            "labels must have shape (8,), or (8, 7) for a label per token, got (2,)",
        ),
        (lambda: make(labels=[[3]] * 8, classes=3), "labels must lie in 0..2, got 3"),
        (lambda: encode(["a"], "aa"), "vocabulary must have different entries"),
        (lambda: from_dataset(make()), "network must be given for sequences, got None. Set network = LSTM()"),
        (lambda: from_dataset(make(), network=MLP()), "network must read tokens, got MLP. Set network = LSTM()"),
        (lambda: features.mapped(make(), "unit_norm"), "features must not be tokens of sequences"),
        (lambda: LSTM(embedding=0), "embedding must be at least 1, got 0"),
        (lambda: LSTM((0,)), "hidden must be at least 1, got 0. Leave out the layer"),
        (
            lambda: from_dataset(make(labels=[0, 1] * 4, classes=2), network=Attention()),
            "network must give scores of shape [1, 1] for one example, got [1, 7, 5]",
        ),
    ],
)
def test_each_mistake_is_one_line(call, message):
    with pytest.raises(Refusal) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_lstm_needs_sequences():
    from fedprivjax.datasets import load

    with pytest.raises(Refusal, match="an LSTM must have sequences of tokens, got features"):
        from_dataset(load("digits"), network=LSTM())
    assert linear_problem(np.eye(2), [0, 1], Softmax(2)).model.loss == Softmax(2)
