"""Integer noise in integer sums: rotation, conditional rounding, the modulus, and runs."""

import tomllib
from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from oracles.integer_noise import PROBABILITIES
from scipy.stats import chi2

import fedprivjax as fpj
from fedprivjax.auditing.of_experiment import protocols_of
from fedprivjax.engine.transcript import replay
from fedprivjax.experiment.read import parse
from fedprivjax.method.integer_sums import IntegerSums
from fedprivjax.method.integers import centred, hadamard, rotated, rounded, unrotated
from fedprivjax.noise.integer_noise import MAX_RATE, SAMPLERS, skellam, summed_noise
from fedprivjax.privacy.accountants.integer_sums import BETA, rounded_norm
from fedprivjax.testing.privacy import aggregated

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(40, 5)).astype(np.float32)
TABLE = np.arange(40).reshape(8, 5)
PROBLEM = fpj.linear_problem(
    FEATURES / np.linalg.norm(FEATURES, axis=1, keepdims=True),
    RNG.integers(0, 3, 40),
    fpj.Softmax(3),
    constraint=fpj.Ball(5.0),
    partition_table=TABLE,
)
WORK = fpj.LocalEpochs(1, batch=2)
SUMS = IntegerSums(work=WORK, update_clip=0.5, bits=16)
EVERYONE = fpj.Full(8)


def method(algorithm=None, privacy=SUMS, **settings):
    chosen = settings or {"epsilon": 8.0}
    return fpj.Protocol(algorithm or fpj.LocalGradientSteps(), privacy=privacy, step_size=0.3, **chosen)


# ---- vectors as integers


@pytest.mark.parametrize("size", [1, 5, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 16, 100))])
def test_a_rotation_keeps_lengths_and_is_undone(size):
    vector = jnp.asarray(RNG.normal(size=size), jnp.float32)
    turned = rotated(vector, 3)
    np.testing.assert_allclose(jnp.linalg.norm(turned), jnp.linalg.norm(vector), rtol=1e-5)
    np.testing.assert_allclose(unrotated(turned, 3)[:size], vector, atol=1e-5)
    assert size < 5 or not np.allclose(turned, rotated(vector, 4))


def test_the_transform_is_that_of_the_hadamard_matrix():
    from scipy.linalg import hadamard as matrix

    vector = RNG.normal(size=16).astype(np.float32)
    np.testing.assert_allclose(hadamard(jnp.asarray(vector)), matrix(16) @ vector / 4, atol=1e-5)


@pytest.mark.parametrize("norm", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("beta", [0.0, BETA, 0.9])
def test_rounded_vectors_keep_their_bound(norm, beta):
    bound = rounded_norm(norm, beta, 64)
    vectors = np.concatenate([RNG.normal(size=(50, 64)), np.sign(RNG.normal(size=(50, 64))), np.eye(64)])
    vectors = (norm * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    keys = jax.random.split(jax.random.key(1), len(vectors))
    found = np.asarray(jax.jit(jax.vmap(partial(rounded, bound=bound)))(keys, vectors))
    assert found.dtype == np.int32
    assert (np.sum(found.astype(np.int64) ** 2, axis=1) <= bound**2).all()
    assert (np.abs(found - vectors) <= 1).all()


def test_beta_is_a_python_number():
    half = replace(SUMS, beta=np.float16(0.3))
    assert type(half.beta) is float
    norms = rounded_norm(5.0, half.beta, 64), rounded_norm(5.0, float(np.float16(0.3)), 64)
    assert norms[0] == norms[1]


def test_rounding_is_unbiased_if_every_rounding_keeps_the_bound():
    vector = jnp.asarray(RNG.normal(size=8), jnp.float32)
    keys = jax.random.split(jax.random.key(2), 20_000)
    found = np.asarray(jax.vmap(lambda key: rounded(key, vector, 1e3))(keys), float)
    assert np.abs(found.mean(axis=0) - vector).max() < 5 * 0.5 / np.sqrt(20_000)


def test_a_vector_that_cannot_be_rounded_within_its_bound_is_rounded_towards_zero():
    vector = jnp.full(4, 99.9999)
    found = rounded(jax.random.key(0), vector, float(jnp.linalg.norm(vector)))
    assert found.tolist() == [99] * 4


def test_integers_are_taken_modulo_a_power_of_two():
    values = jnp.array([-8, -9, 7, 8, 100])
    assert centred(values, 4).tolist() == [-8, 7, 7, -8, 4]
    assert jnp.array_equal(centred(jnp.sum(values), 4), centred(jnp.sum(centred(values, 4)), 4))


# ---- noise


@pytest.mark.parametrize(
    "deviation",
    [0.7, pytest.param(5.0, marks=pytest.mark.slow), pytest.param(1.5 * np.sqrt(2 * MAX_RATE), marks=pytest.mark.slow)],
)
def test_a_message_s_noise_has_its_variance(deviation):
    found = np.asarray(jax.jit(lambda key: skellam(key, deviation, (100_000,)))(jax.random.key(3)), float)
    assert found.var() == pytest.approx(deviation**2, rel=0.03)
    assert abs(found.mean()) < 5 * deviation / np.sqrt(100_000)


def accepts(found, probabilities):
    """Return True if a χ² test accepts that integers have probabilities, from −reach to reach."""
    reach, expected = probabilities.size // 2, found.size * probabilities
    often = expected >= 10
    counts = np.bincount(found + reach, minlength=probabilities.size)[often]
    cells, expected = np.append(counts, found.size - counts.sum()), np.append(expected[often], 0.0)
    expected[-1] = max(found.size - expected.sum(), 1.0)
    return chi2.sf(((cells - expected) ** 2 / expected).sum(), len(cells) - 1) > 1e-4


@pytest.mark.parametrize(
    ("distribution", "machines", "deviation"),
    [
        ("discrete-gaussian", 3, 0.45),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in product(PROBABILITIES, (3,), (0.4, 2.5, 40.0))),
    ],
)
def test_samples_of_sums_have_their_distribution(distribution, machines, deviation):
    """On the host, and for one message on the device. 2/3 and 3/2 of the scale are rejected."""
    shape, reach = (50_000,), 500
    stream = np.random.SeedSequence(1)
    found = [summed_noise(distribution, stream, deviation, np.array([machines]), *shape)[0]]
    keys = jax.random.split(jax.random.key(5), machines)
    each = [np.asarray(jax.jit(SAMPLERS[distribution].message, static_argnums=2)(k, deviation, shape)) for k in keys]
    found.append(np.sum(each, axis=0))
    for sample in found:
        for factor, expected in [(1, True), (2 / 3, False), (3 / 2, False)]:
            stated = PROBABILITIES[distribution]((factor * deviation) ** 2, machines, reach)
            assert accepts(sample, stated) == expected


def test_a_sum_of_discrete_gaussian_noises_is_not_sampled_as_one():
    found = summed_noise("discrete-gaussian", np.random.SeedSequence(2), 0.3, np.array([2]), 100_000)[0]
    assert accepts(found, PROBABILITIES["discrete-gaussian"](0.09, 2, 50))
    assert not accepts(found, PROBABILITIES["discrete-gaussian"](0.18, 1, 50))


def test_a_missing_message_has_no_noise():
    assert not np.asarray(SAMPLERS["discrete-gaussian"].message(jax.random.key(0), 0.0, (1000,))).any()
    assert not summed_noise("discrete-gaussian", np.random.SeedSequence(2), 3.0, np.array([0]), 100).any()


@pytest.mark.slow
@pytest.mark.parametrize("distribution", PROBABILITIES)
@pytest.mark.parametrize("noise_method", ["auto", "materialised"])
def test_the_decoded_sum_has_the_stated_variance(noise_method, distribution):
    """The server's mean is that of the clipped updates, with noise of variance σ²/n, and rounding within 1/(4·s²·n)."""
    rows = fpj.datasets.load("logistic", examples=16, features=1500)
    problem = fpj.from_dataset(rows, fpj.Logistic(), partition_table=np.arange(16).reshape(8, 2))
    points = []
    for seed, std in [(seed, std) for seed in range(12) for std in (0.0, 0.3)]:
        private = IntegerSums(work=WORK, distribution=distribution, update_clip=0.5, scale=400.0, bits=20)
        run = fpj.simulate(
            method(privacy=private, noise_std=std),
            problem,
            EVERYONE,
            rounds=1,
            seed=seed,
            metrics=(),
            noise_method=noise_method if std else "auto",
        )
        points.append(ravel_pytree(run.params)[0])
    noise = np.array(points[1::2]) - np.array(points[::2])
    stated = 0.3**2 / 8
    assert noise.var() == pytest.approx(stated, rel=0.02 if noise.size > 15_000 else 0.05)


# ---- runs


def test_integers_stay_integers():
    start = fpj.ready(method(), PROBLEM, EVERYONE, rounds=2, seed=1, noise_method="materialised")
    shapes = jax.eval_shape(lambda arguments: replay(arguments, start.plan.size)[1][1], start.arguments)
    assert shapes.dtype == jnp.int32
    assert shapes.shape == (2, 8, 16)
    arguments = jax.tree.map(jnp.asarray, start.arguments)
    program = jax.make_jaxpr(lambda arguments: replay(arguments, start.plan.size)[0])(arguments)
    sums = [line for line in str(program).splitlines() if "reduce_sum" in line and ":i32[16]" in line]
    assert sums, "the messages of a round are added as integers"


@pytest.mark.slow
def test_the_view_is_the_sum_modulo_a_power_of_two():
    """An adversary sees a round's sum as integers modulo 2^b."""
    small = replace(SUMS, bits=8, scale=100.0)
    with pytest.warns(UserWarning, match="modulus 2\\^8 may wrap"):
        view = fpj.transcript(method(privacy=small, noise_std=1.0), PROBLEM, EVERYONE, rounds=2, seed=1)
    assert view.messages.dtype == np.int32
    assert view.messages.shape == (2, 1, 16)
    assert view.messages.min() >= -128
    assert view.messages.max() <= 127


@pytest.mark.parametrize(
    ("algorithm", "distribution"),
    [
        pytest.param(fpj.ControlVariates(), "discrete-gaussian", marks=pytest.mark.slow),
        pytest.param(fpj.ControlVariates(), "skellam", marks=pytest.mark.slow),
        pytest.param(fpj.FedExP(), "skellam", marks=pytest.mark.slow),
    ],
)
def test_any_local_work_carries(algorithm, distribution):
    private = replace(SUMS, distribution=distribution)
    run = fpj.simulate(method(algorithm, private, noise_std=0.1), PROBLEM, EVERYONE, rounds=3, seed=1)
    assert np.isfinite(np.asarray(ravel_pytree(run.params)[0])).all()


@pytest.mark.slow
def test_without_noise_a_run_follows_federated_averaging():
    plain = fpj.FedAvg(local_epochs=1, batch=2, step_size=0.3)
    one, other = (
        ravel_pytree(fpj.simulate(each, PROBLEM, EVERYONE, rounds=5, seed=2).params)[0]
        for each in (plain, method(privacy=replace(SUMS, update_clip=50.0, bits=24), noise_std=0.0))
    )
    assert np.abs(one - other).max() < 1e-3


@pytest.mark.slow
def test_the_share_of_wrapped_coordinates_is_that_of_the_formula():
    private = replace(SUMS, bits=8, scale=100.0)
    with pytest.warns(UserWarning, match="Use more bits or a smaller scale"):
        run = fpj.simulate(
            method(privacy=private, noise_std=1.0),
            PROBLEM,
            EVERYONE,
            rounds=40,
            seed=1,
            metrics=[fpj.of_info("wrapped_share")],
        )
    share = float(np.mean(run.metrics["wrapped_share"]))
    assert share == pytest.approx(private.wrap_probability(1.0, 8, 16), abs=0.1)
    assert share > 0.5


def test_the_default_scale_leaves_room():
    for bits in (10, 12, 16):
        assert replace(SUMS, bits=bits).wrap_probability(0.7, 50, 8192) < 1e-4


def test_costs_count_keys_and_shares():
    run = fpj.simulate(method(), PROBLEM, EVERYONE, rounds=1, seed=1)
    assert run.costs["sent_bits"] == 16 * 16 + 2 * 256 + (3 * 8 - 2) * 256


def test_the_default_adversary_sees_sums():
    start = fpj.ready(method(), PROBLEM, EVERYONE, rounds=3, seed=1)
    assert start.guarantee.terms.adversary == "secure-sum"
    assert start.guarantee.epsilon == pytest.approx(8.0, rel=1e-5)
    alone = fpj.ready(method(noise_std=float(start.protocol.noise_std)), PROBLEM, EVERYONE, rounds=3, seed=1)
    assert alone.guarantee.epsilon == pytest.approx(8.0, rel=1e-5)
    colluding = replace(method(noise_std=float(start.protocol.noise_std)), adversary=fpj.Coalition(4))
    assert fpj.ready(colluding, PROBLEM, EVERYONE, rounds=3, seed=1).guarantee.epsilon > 8.0


def test_the_guarantee_names_the_distribution():
    private = replace(SUMS, distribution="discrete-gaussian")
    start = fpj.ready(method(privacy=private), PROBLEM, EVERYONE, rounds=3, seed=1)
    assert start.guarantee.epsilon == pytest.approx(8.0, rel=1e-5)
    text = str(start.guarantee)
    assert "Kairouz, Liu & Steinke 2021, Proposition 14" in text
    assert "samples of the discrete Gaussian distribution" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    {
        "bits": ({"bits": 25}, "^bits must be at most 24, got 25"),
        "few bits": ({"bits": 1}, "^bits must be at least 2"),
        "beta": ({"beta": 1.0}, "^beta must be at least 0 and below 1, got 1"),
        "scale": ({"scale": -1.0}, "^scale must be"),
        "adaptive": ({"update_clip": fpj.AdaptiveClip()}, "^update_clip must be a number with IntegerSums"),
        "distribution": ({"distribution": "gaussian"}, "^unknown distribution 'gaussian'"),
        "relation": ({"relation": "added"}, "^unknown relation 'added'"),
        "work": ({"work": 3}, "^work must be a LocalEpochs or a LocalSteps"),
    }.values(),
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(fpj.Refusal, match=message):
        IntegerSums(**{"work": WORK, "update_clip": 1.0, **settings})


@pytest.mark.parametrize(
    ("privacy", "participation", "message"),
    {
        "no clip": (replace(SUMS, update_clip=None), EVERYONE, "^update_clip must be given"),
        "too few bits": (replace(SUMS, bits=3), EVERYONE, "^bits must be at least 5 for sums of 8 machines, got 3"),
        "secret cohorts": (SUMS, fpj.PoissonCohorts(8, 0.5), "^trust must be 'server' under secret participation"),
        "inexact": (replace(SUMS, scale=1e9), EVERYONE, "^scale must be at most"),
    }.values(),
)
def test_runs_that_no_theorem_covers_are_refused(privacy, participation, message):
    with pytest.raises(fpj.Refusal, match=message):
        fpj.ready(method(privacy=privacy, noise_std=1.0), PROBLEM, participation, rounds=2, seed=1)


FILE = """
title = "integer sums"
[problem]
dataset = "digits"
loss = "softmax"
partition = { kind = "iid" }
[participation]
kind = "full"
machines = 8
rounds = 3
[[protocol]]
name = "local_gradient_steps"
step_size = 0.1
[protocol.privacy]
kind = "integers"
distribution = "discrete-gaussian"
work = { local_epochs = 1, batch = 10 }
update_clip = 1.0
bits = 14
[sweep]
epsilon = [8]
"""


def test_experiment_files_name_it():
    (protocol,) = protocols_of(parse(tomllib.loads(FILE))).values()
    assert protocol.privacy.bits == 14
    assert protocol.privacy.distribution == "discrete-gaussian"
    assert str(protocol.adversary) == "secure-sum"


# ---- planted faults


@pytest.mark.slow
def test_the_modulus_before_the_noise_is_refuted(monkeypatch):
    def early(self, message, key, facts):
        return jnp.bitwise_and(encoded(self, message, key, facts), 2**self.bits - 1)

    encoded = IntegerSums.encoded
    bound = ["no message exceeds the stated bound"]
    monkeypatch.setattr(IntegerSums, "encoded", early)
    with pytest.raises(AssertionError, match="message's norm must be at most"):
        fpj.check_protocol(method(), PROBLEM, EVERYONE, properties=bound)


def test_half_the_noise_is_refuted(monkeypatch):
    def less(self, plan, dimension, seed, noise_std):
        return host_noise(self, plan, dimension, seed, noise_std / 2)

    def ratio():
        """Return the noise in the mean of the messages, divided by the stated one."""
        start = fpj.ready(method(), PROBLEM, EVERYONE, rounds=2, seed=1)
        return aggregated(start, start.mechanism, 1).std() / (float(start.protocol.noise_std) / np.sqrt(8))

    host_noise = IntegerSums.host_noise
    assert ratio() == pytest.approx(1.0, abs=0.02)
    monkeypatch.setattr(IntegerSums, "host_noise", less)
    assert ratio() == pytest.approx(0.5, abs=0.02)
