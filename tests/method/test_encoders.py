"""Encoders of messages: mean, error, norm and bits; their place after local noise; a server's noise; files."""

import tomllib
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import COMPILED, sparing
from restating import states
from small_file import FEDERATION

from fedprivjax import (
    AdaptiveClip,
    Encoder,
    FedAvg,
    Full,
    Logistic,
    PoissonCohorts,
    Quantiser,
    Refusal,
    Scaffold,
    Sparsifier,
    Uniform,
    linear_problem,
    ready,
    simulate,
    transcript,
)
from fedprivjax.engine.transcript import replay
from fedprivjax.experiment.build import make_protocol
from fedprivjax.experiment.read import parse
from fedprivjax.testing import check_protocol

RNG = np.random.default_rng(5)
X = RNG.normal(size=7).astype(np.float32)
ENCODERS = Quantiser(1), Quantiser(5), Sparsifier(0.4), Sparsifier(0.01)
DRAWS = 20_000
MACHINES, DIMENSION, CLIP = 6, 3, 0.7
LOCAL: dict[str, Any] = {"unit": "machine", "update_clip": CLIP, "trust": "none"}
WORK: dict[str, Any] = {"local_epochs": 1, "batch": 2, "step_size": 0.5}


@dataclass(frozen=True)
class Unchanged(Encoder):
    """The message itself, without a bound on its norm."""

    def encode(self, message, key):
        return message

    def bits(self, dimension):
        return 64.0 * dimension


@states("norm_bound")
@dataclass(frozen=True)
class RoundedDown(Quantiser):
    """Planted: levels are never rounded up."""

    def encode(self, message, key):
        norm = jnp.linalg.norm(message)
        return norm / self.levels * jnp.sign(message) * jnp.floor(self.levels * jnp.abs(message) / norm)


@states("norm_bound")
@dataclass(frozen=True)
class Unscaled(Sparsifier):
    """Planted: the coordinates that are kept are not divided by their fraction."""

    def encode(self, message, key):
        return super().encode(message, key) * self.fraction


def problem(machines=MACHINES, records=4):
    features = RNG.normal(size=(machines * records, DIMENSION)).astype(np.float32)
    labels = (features @ np.array([1.0, -2.0, 0.5]) > 0).astype(int)
    rows = np.arange(machines * records).reshape(machines, records)
    return linear_problem(features, labels, Logistic(), partition_table=rows)


def encoded(encoder, message=X, draws=DRAWS):
    keys = jax.random.split(jax.random.key(3), draws)
    return np.asarray(jax.vmap(lambda key: encoder.encode(jnp.asarray(message), key))(keys), np.float64)


def bias(encoder):
    """Largest difference between the mean and the message, in standard errors."""
    rows = encoded(encoder)
    error = np.maximum(rows.std(axis=0), 1e-6) / np.sqrt(len(rows))
    return np.max(np.abs(rows.mean(axis=0) - X) / error)


@pytest.mark.parametrize("encoder", sparing(ENCODERS, [ENCODERS[1]]), ids=str)
def test_the_mean_of_encoded_messages_is_the_message(encoder):
    assert bias(encoder) < 5


@pytest.mark.parametrize("encoder", [RoundedDown(5), pytest.param(Unscaled(0.4), marks=pytest.mark.slow)], ids=str)
def test_a_biased_encoder_is_found(encoder):
    assert bias(encoder) > 10


@pytest.mark.parametrize("levels", [1, 2, 5, 40])
def test_the_squared_error_of_a_quantiser_is_within_its_bound(levels):
    scaled = levels * np.abs(X) / np.linalg.norm(X)
    exact = np.sum((scaled % 1) * (1 - scaled % 1)) * (np.linalg.norm(X) / levels) ** 2
    errors = np.sum((encoded(Quantiser(levels)) - X) ** 2, axis=1)
    assert errors.mean() == pytest.approx(exact, abs=5 * errors.std() / np.sqrt(DRAWS))
    assert exact <= min(X.size / levels**2, np.sqrt(X.size) / levels) * np.sum(X**2)


def test_the_squared_error_of_a_sparsifier_is_that_of_its_fraction():
    errors = np.sum((encoded(Sparsifier(3 / 7)) - X) ** 2, axis=1)
    assert errors.mean() == pytest.approx((7 / 3 - 1) * np.sum(X**2), abs=5 * errors.std() / np.sqrt(DRAWS))


@pytest.mark.parametrize("encoder", sparing(ENCODERS, [ENCODERS[1], ENCODERS[2]]), ids=str)
def test_no_encoded_message_is_longer_than_its_bound(encoder):
    """The worst messages are equal numbers just above a level, and a single number, by brute force."""
    equal = np.full(7, np.float32(1.0001) / np.sqrt(7), np.float32)
    messages = [X, equal, np.eye(7, dtype=np.float32)[2], *RNG.normal(size=(20, 7)).astype(np.float32)]
    longest = [np.linalg.norm(encoded(encoder, one, 500), axis=1).max() / np.linalg.norm(one) for one in messages]
    bound = encoder.norm_bound(1.0, 7)
    assert 0.5 * bound < max(longest) <= bound * (1 + 1e-5)
    assert encoder.norm_bound(3.0, 7) == pytest.approx(3 * bound)


@pytest.mark.parametrize("encoder", sparing(ENCODERS, [ENCODERS[1]]), ids=str)
def test_a_message_of_zeros_stays_zero(encoder):
    np.testing.assert_array_equal(encoded(encoder, np.zeros(7, np.float32), 5), 0)


def test_costs_count_the_bits_of_encoded_messages():
    where, cohorts = problem(), Uniform(MACHINES, 3)

    def bits(method, **settings):
        costs = ready(method(**WORK, **settings), where, cohorts, rounds=4).costs
        assert costs["sent_bytes"] == pytest.approx(costs["sent_bits"] / 8 * 4 * 3 / MACHINES)
        return costs["sent_bits"]

    assert bits(FedAvg) == 32 * DIMENSION
    assert bits(FedAvg, encoder=Quantiser(16)) == 32 + 6 * DIMENSION
    assert bits(FedAvg, encoder=Quantiser(1)) == 32 + 2 * DIMENSION
    assert bits(Scaffold, encoder=Quantiser(16)) == 32 + 6 * 2 * DIMENSION
    assert bits(FedAvg, encoder=Quantiser(3), update_clip=AdaptiveClip(start=1.0)) == 32 + 3 * (DIMENSION + 1)
    assert bits(FedAvg, encoder=Sparsifier(0.4)) == 32
    assert bits(FedAvg, encoder=Unchanged()) == 64 * DIMENSION


def sent(method, rounds=3, cohorts=None, **options):
    start = ready(method, problem(), cohorts or Full(MACHINES), rounds=rounds, noise_method="materialised", **options)
    return start, np.asarray(replay(start.arguments, start.plan.size)[1][1], np.float64)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="non-private", marks=pytest.mark.slow),
        pytest.param(LOCAL | {"noise_std": 0.3}, id="machine"),
        pytest.param({"unit": "record", "clip": 1.0, "noise_std": 0.3}, id="record", marks=pytest.mark.slow),
    ],
)
def test_messages_are_encoded_after_their_noise_and_summed_as_they_are(settings):
    start, messages = sent(FedAvg(encoder=Quantiser(1), **WORK, **settings), rounds=1)
    lengths = np.abs(messages[0])
    np.testing.assert_allclose(lengths * (lengths.max(axis=1, keepdims=True) - lengths), 0, atol=1e-6)
    assert (lengths.max(axis=1) > 0).sum() > 3
    run = simulate(start.protocol, start.problem, Full(MACHINES), rounds=1, metrics=[])
    np.testing.assert_allclose(run.params, messages[0].mean(axis=0), rtol=1e-5, atol=1e-7)


def test_machines_and_rounds_encode_independently():
    method = FedAvg(encoder=Sparsifier(0.01), local_steps=1, step_size=1e-6)
    _, messages = sent(method, rounds=30)
    places = np.argmax(np.abs(messages), axis=2)
    assert len({tuple(row) for row in places}) > 20
    assert len({tuple(row) for row in places.T}) == MACHINES
    np.testing.assert_allclose(np.bincount(places.ravel(), minlength=3) / places.size, 1 / 3, atol=0.15)


def test_an_encoder_leaves_the_guarantee_of_local_noise_as_it_is():
    where, cohorts = problem(), Uniform(MACHINES, 3)
    record: dict[str, Any] = {"unit": "record", "clip": 1.0}
    for settings in (LOCAL, record, LOCAL | {"update_clip": AdaptiveClip(start=0.5)}):
        plain, with_encoder = (
            ready(FedAvg(epsilon=2.0, encoder=encoder, **WORK, **settings), where, cohorts, rounds=4)
            for encoder in (None, Unchanged())
        )
        assert with_encoder.protocol.noise_std == plain.protocol.noise_std
        assert str(with_encoder.guarantee) == str(plain.guarantee)


@pytest.mark.parametrize("method", sparing([FedAvg, Scaffold], [FedAvg]))
def test_noise_before_the_encoder_has_its_stated_scale(method):
    where = problem(400)
    noisy, quiet = (
        np.asarray(transcript(one, where, Full(400), rounds=1).messages)
        for one in (method(encoder=Unchanged(), noise_std=std, **WORK, **LOCAL) for std in (0.8, 1e-9))
    )
    ratio, error = np.std(noisy - quiet) / 0.8, 1 / np.sqrt(2 * noisy.size)
    assert abs(ratio - 1) < 5 * error < 1 / 6


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("encoder", [Quantiser(2), Sparsifier(0.4)], ids=str)
def test_a_servers_noise_follows_the_norm_of_encoded_messages(encoder, relation):
    settings = WORK | {"unit": "machine", "update_clip": CLIP, "noise_std": 0.2, "relation": relation}
    plain, start = (
        ready(FedAvg(encoder=one, **settings), problem(), Uniform(MACHINES, 3), rounds=4) for one in (None, encoder)
    )
    factor = encoder.norm_bound(1.0, DIMENSION)
    assert start.event.sensitivity == pytest.approx(factor * plain.event.sensitivity)
    assert start.event.mu == pytest.approx(factor * plain.event.mu)
    assert "every message is encoded before the server's noise" in str(start.guarantee)
    secret = PoissonCohorts(MACHINES, 0.5)
    shifts = [
        ready(FedAvg(encoder=one, **settings), problem(), secret, rounds=4).event.releases.shift  # pyright: ignore[reportAttributeAccessIssue]
        for one in (None, encoder)
    ]
    np.testing.assert_allclose(shifts[1], factor * shifts[0])


@pytest.mark.parametrize(
    ("method", "clip"),
    [
        pytest.param(FedAvg, CLIP, id="FedAvg-fixed"),
        pytest.param(Scaffold, AdaptiveClip(start=CLIP), id="Scaffold-adaptive", marks=pytest.mark.slow),
        pytest.param(FedAvg, AdaptiveClip(start=CLIP), id="FedAvg-adaptive", marks=pytest.mark.slow),
        pytest.param(Scaffold, CLIP, id="Scaffold-fixed", marks=pytest.mark.slow),
    ],
)
def test_no_encoded_update_is_longer_than_the_sensitivity_counts(method, clip):
    settings: dict[str, Any] = WORK | {"step_size": 50.0, "unit": "machine", "update_clip": clip, "noise_std": 0.2}
    protocol = method(encoder=Quantiser(1), relation="add-or-remove-one", **settings)
    start, messages = sent(replace(protocol, noise_std=1e-9), rounds=20)
    divisor = 1 if isinstance(clip, AdaptiveClip) else MACHINES
    longest = np.linalg.norm(messages, axis=2).max() / divisor
    assert 0.4 * start.event.sensitivity < longest <= start.event.sensitivity * (1 + 1e-5)


@pytest.mark.slow
def test_machines_keep_exact_control_variates_and_the_server_their_encoded_changes():
    data = problem()

    def after_a_round(encoder):
        start = ready(Scaffold(**WORK, encoder=encoder), data, Full(MACHINES), rounds=1)
        protocol, where, _, inputs, _, key = start.arguments
        state = protocol.init(where, start.plan.size, key)
        at = jax.tree.map(lambda leaf: leaf[0], inputs)
        state = jax.jit(lambda state: protocol.round(where, state, at, None, key)[0])(state)
        return np.ravel(state.server.server.control), np.asarray(state.own).reshape(MACHINES, -1)

    (control, own), (exact, exact_own) = after_a_round(Quantiser(2)), after_a_round(None)
    np.testing.assert_array_equal(own, exact_own)
    np.testing.assert_allclose(exact, own.mean(axis=0), atol=1e-6)
    assert np.abs(control - exact).max() > 0.01 * np.abs(exact).max()


def test_a_server_refuses_to_add_noise_to_messages_without_a_bound():
    method = FedAvg(encoder=Unchanged(), unit="machine", update_clip=CLIP, noise_std=0.2, **WORK)
    with pytest.raises(Refusal, match=r"encoder must bound the norm .* trusted server's noise, got .*Unchanged\(\)"):
        ready(method, problem(), Full(MACHINES), rounds=2)
    with pytest.raises(Refusal, match="encoder must bound the norm"):
        ready(method, problem(), PoissonCohorts(MACHINES, 0.5), rounds=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(FedAvg(**WORK), encoder="quantiser"), "encoder must be an Encoder, such as Quantiser"),
        (lambda: Quantiser(levels=0), "levels must be at least 1, got 0"),
        (lambda: Quantiser(**{"level": 3}), "unknown setting of Quantiser 'level', did you mean 'levels'"),
        (lambda: Sparsifier(fraction=0.0), "fraction must be a probability above 0 and at most 1"),
        (lambda: parsed('encoder = { kind = "quantizer" }'), "unknown encoder 'quantizer', did you mean 'quantiser'"),
        (lambda: parsed("encoder = { levels = 16 }"), "encoder must name its kind"),
        (lambda: parsed('encoder = { kind = "quantiser", levels = 0 }'), "levels must be at least 1"),
        (lambda: parsed('encoder = { kind = "quantiser", depth = 2 }'), "unknown option of encoder quantiser 'depth'"),
    ],
)
def test_invalid_encoders_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def parsed(line, folder=None):
    text = f"""title = "encoders"
{FEDERATION}
[[protocol]]
name = "fedavg"
label = "FedAvg"
local_epochs = 1
step_size = 0.1
{line}
"""
    return make_protocol(parse(tomllib.loads(text), folder).protocol[0]).encoder


def test_an_experiment_file_names_an_encoder(tmp_path):
    assert parsed('encoder = { kind = "quantiser", levels = 4 }') == Quantiser(4)
    assert parsed('encoder = "sparsifier"') == Sparsifier()
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom fedprivjax import Quantiser\n\n\n"
        "@dataclass(frozen=True)\nclass Half(Quantiser):\n    extra: int = 1\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Needs(Quantiser):\n    more: int\n"
    )
    own = parsed('encoder = { kind = "mine:Half", extra = 7 }', tmp_path)
    assert (type(own).__name__, own.extra) == ("Half", 7)
    with pytest.raises(Refusal, match="encoder 'mine:Needs' must be given its options in its table, got missing a req"):
        parsed('encoder = "mine:Needs"', tmp_path)


@pytest.mark.slow
def test_the_contract_holds_with_an_encoder():
    for trust in ("none", "server"):
        settings: dict[str, Any] = LOCAL | {"mu": 1.0, "trust": trust}
        protocol = FedAvg(encoder=Quantiser(2), **WORK, **settings)
        properties = None if trust == "none" else COMPILED
        report = check_protocol(protocol, problem(records=8), Full(MACHINES), properties=properties)
        assert not report.skipped
