"""Factors for every schedule of a separation: exposures by brute force, jax-privacy's numbers, samplers, refusals."""

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax import AnySchedule, Banded, FedAvg, Refusal, Schedule, experiment
from fedprivjax.experiment import jobs as listed
from fedprivjax.noise.factors import Tree, separated
from fedprivjax.noise.factors.matrices import coefficients, toeplitz
from fedprivjax.noise.factors.separated import BANDED, BOUND, DECREASING, largest_sum, separated_exposure, turns
from fedprivjax.noise.interface import normals
from fedprivjax.noise.server_factors import KINDS, RoundFactor, over_rounds
from fedprivjax.plan.seeds import round_keys

ROUNDS, SEPARATION, USES = 60, 10, 6
X = np.zeros((120, 3))
PROBLEM = fpj.linear_problem(X, np.arange(120) % 2, fpj.Logistic(), partition_table=np.arange(120).reshape(60, 2))
WORK = {"unit": "machine", "relation": "add-or-remove-one", "update_clip": 1.0, "local_epochs": 1, "step_size": 0.1}
# jax-privacy 2.0.0, float64: buffered_toeplitz.optimize(n=60, min_sep=10, max_participations=6, error="max", 3 buffers)
BUFFERS = [0.9999999948096527, 0.9895363665686274, 0.8101948175621148]
SCALES = [0.03954344671084338, 4.3131894778372163e-08, 0.49842509244706135]
BLT = fpj.BLT(BUFFERS, SCALES)


IN_TURN: fpj.Participation = fpj.Cyclic(60, 6)


def prepared(factor, scheme: fpj.Participation = IN_TURN, rounds=ROUNDS, **settings) -> Any:
    method = FedAvg(noise_schedule=factor, **{"noise_std": 1.0, **WORK, **settings})
    return fpj.ready(method, PROBLEM, scheme, rounds=rounds, metrics=())


# ---- exposures by brute force


def patterns(rounds, separation, uses):
    """Every set of at most `uses` rounds that are at least `separation` apart."""
    for many in range(1, uses + 1):
        for found in combinations(range(rounds), many):
            if all(found[i + 1] - found[i] >= separation for i in range(many - 1)):
                yield list(found)


def largest_move(columns, rng) -> float:
    """A lower bound on the largest ‖F·x‖ over vectors x_j of norm 1: signs of one axis, then ascent in vectors."""
    many = columns.shape[1]
    best = max(np.linalg.norm(columns @ signs) for signs in product((1, -1), repeat=many))
    for _ in range(3):
        x = rng.normal(size=(many, many))
        for _ in range(30):
            x = columns.T @ (columns @ x) + 1e-9 * x
            x /= np.linalg.norm(x, axis=1, keepdims=True)
        best = max(best, np.linalg.norm(columns @ x))
    return float(best)


def random_factor(kind, rounds, separation, rng):
    if kind == "decreasing":
        return toeplitz(np.sort(rng.random(rounds))[::-1])
    factor = np.tril(rng.normal(size=(rounds, rounds))) + 2 * np.eye(rounds)
    if kind == "bands":
        return np.triu(factor, 1 - separation)
    return np.abs(factor) if kind == "positive" else factor


KINDS_OF_FACTORS = {"decreasing": DECREASING, "bands": BANDED, "positive": BOUND, "signed": BOUND}


def compared(kind, seeds):
    """Yield the stated exposure with its rule, and the largest move of any pattern, of random factors."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rounds, separation = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        uses = int(rng.integers(1, 5))
        factor = random_factor(kind, rounds, separation, rng)
        moves = [largest_move(factor[:, found], rng) for found in patterns(rounds, separation, uses)]
        yield separated_exposure(factor, separation, uses), max(moves)


@pytest.mark.parametrize("kind", KINDS_OF_FACTORS)
def test_no_pattern_moves_the_releases_by_more_than_the_exposure(kind):
    """All patterns, vectors and negative entries; the rules that are said to be exact are."""
    rules = set()
    for stated, found in compared(kind, 12):
        assert found <= stated.value * (1 + 1e-12)
        if stated.rule != BOUND:
            assert found == pytest.approx(stated.value, rel=1e-9)
        rules.add(stated.rule)
    assert KINDS_OF_FACTORS[kind] in rules


@pytest.mark.parametrize("kind", KINDS_OF_FACTORS)
def test_one_use_too_few_is_found(kind, monkeypatch):
    """The fault: k − 1 uses."""
    true = separated.separated_exposure
    monkeypatch.setitem(globals(), "separated_exposure", lambda f, b, k: true(f, b, max(k - 1, 1)))
    assert any(found > 1.01 * stated.value for stated, found in compared(kind, 12))


def test_largest_sums_are_those_of_all_patterns():
    rng = np.random.default_rng(1)
    for separation, uses in product((1, 2, 3, 9), (1, 2, 4, 8)):
        values = rng.random((3, 8))
        sums = [values[:, found].sum(axis=1) for found in patterns(8, separation, uses)]
        np.testing.assert_allclose(largest_sum(values, separation, uses), np.max(sums, axis=0), rtol=1e-12)


# minsep_sensitivity_squared of jax-privacy 2.0.0, float64, by rounds, separation, uses, bandwidth
SQUARES = {
    (16, 4, 4, 15): 13.80286600802343,
    (40, 7, 3, 39): 11.649313670685101,
    (40, 7, 6, 15): 18.819731196332853,
    (25, 3, 2, 9): 5.101577459368855,
    (25, 30, 1, 24): 2.0877064896192548,
    (100, 10, 31, 31): 43.474438926579964,
    (60, 1, 60, 59): 2311.126661799716,
}


@pytest.mark.parametrize("case", SQUARES, ids=str)
def test_decreasing_coefficients_have_the_sensitivity_that_jax_privacy_finds(case):
    rounds, separation, uses, band = case
    factor = toeplitz(coefficients(rounds, band))
    assert separated_exposure(factor, separation, uses).value ** 2 == pytest.approx(SQUARES[case], rel=1e-9)


# get_min_sep_sensitivity_upper_bound of jax-privacy 2.0.0, by rounds, separation, uses
BOUNDS = {(8, 2, 3): 7.196139698343316, (12, 3, 4): 9.013023996816399, (20, 4, 3): 9.723814470241214}


@pytest.mark.parametrize("case", BOUNDS, ids=str)
def test_other_factors_have_a_bound_that_is_at_most_that_of_jax_privacy(case):
    rounds, separation, uses = case
    factor = np.tril(np.sin(np.add.outer(3.0 * np.arange(rounds), np.arange(rounds)))) + 2 * np.eye(rounds)
    stated = separated_exposure(factor, separation, uses)
    assert stated.rule == BOUND
    assert 0.5 * BOUNDS[case] < stated.value <= BOUNDS[case] * (1 + 1e-6)


# ---- runs


@pytest.mark.parametrize(("factor", "mu"), [(Banded(10), 0.408248), (BLT, 0.725789)], ids=["banded", "blt"])
def test_known_values(factor, mu):
    """60 rounds, cohorts of 6 of 60 in turn, multiplier 1, divisor 6; replace-one moves sums twice as far."""
    guarantee = prepared(AnySchedule(factor, SEPARATION, USES)).guarantee
    assert guarantee.mu == pytest.approx(mu, abs=5e-7)
    assert prepared(AnySchedule(factor, SEPARATION, USES), relation="replace-one").guarantee.mu == pytest.approx(
        2 * guarantee.mu
    )
    text = str(guarantee)
    assert "at most 6 rounds, at least 10 rounds apart" in text
    assert "may be too little for another" not in text
    assert "exact exposure" in guarantee.terms.theorem


def test_a_bound_is_called_a_bound():
    theorem = prepared(AnySchedule("tree", SEPARATION, USES)).guarantee.terms.theorem
    assert "upper bound on the exposure, from |FᵀF|" in theorem


@pytest.mark.parametrize("factor", ["toeplitz", "tree", Banded(4), BLT])
def test_another_schedule_changes_neither_noise_nor_epsilon(factor):
    found = []
    for seed in range(2):
        rows = np.random.default_rng(seed).permutation(60)[:36].reshape(6 + 3 * seed, -1)
        scheme = fpj.Given(60, np.tile(rows, (10, 1)))
        factored = AnySchedule(factor, 6, 10)
        start = prepared(factored, scheme, rounds=48, noise_std=None, epsilon=2.0, relation="replace-one")
        np.testing.assert_array_equal(start.event.exposure.each, start.event.exposure.each[0])
        found.append((start.protocol.noise_std * start.plan.schedule.divisor, start.guarantee.epsilon))
    assert found[0] == pytest.approx(found[1], rel=1e-12)
    assert found[0][1] == pytest.approx(2.0, rel=1e-6)


def test_the_exposure_on_the_sampled_schedule_is_at_most_that_of_any_schedule():
    for factor in ("toeplitz", "tree", Banded(10), BLT, np.eye(ROUNDS).tolist()):
        drawn, every = (prepared(one).guarantee.mu for one in (factor, AnySchedule(factor, SEPARATION, USES)))
        assert drawn <= every * (1 + 1e-9)


class Elsewhere:
    """A factor of another library: Toeplitz, in float32."""

    def materialize(self, n):
        return jnp.asarray(toeplitz(1.0 / np.arange(1, n + 1)))


def test_factors_of_other_libraries_are_taken_as_they_are():
    theirs, ours = Elsewhere(), toeplitz(1.0 / np.arange(1, ROUNDS + 1))
    found = prepared(AnySchedule(theirs, SEPARATION, USES)).guarantee
    assert found.mu == pytest.approx(separated_exposure(ours, SEPARATION, USES).value / 6, rel=1e-6)
    assert DECREASING in found.terms.theorem


def test_independent_noise_counts_the_uses():
    assert prepared(AnySchedule("independent", 1, USES)).guarantee.mu == pytest.approx(USES**0.5 / 6)


@pytest.mark.parametrize(
    "factor",
    [
        Banded(4),
        BLT,
        pytest.param(AnySchedule("optimal", 3, 2), marks=pytest.mark.slow),
        pytest.param(AnySchedule(Tree(), 3), marks=pytest.mark.slow),
    ],
)
def test_samplers(factor):
    """F·z is the normals, sampled in blocks of rounds."""
    schedule = turns(8, 3, 3)
    mechanism, keys, dimension = factor.mechanism(schedule), round_keys(jax.random.key(3), np.arange(1, 9)), 50
    state, parts = mechanism.init(dimension, jax.random.key(3)), []
    for first, end in ((0, 3), (3, 8)):
        inputs = jax.tree.map(lambda leaf: leaf[first:end], mechanism.inputs)  # noqa: B023
        state, z = mechanism.draw(state, inputs, keys[first:end], dimension)
        parts.append(np.asarray(z, float))
    normal = np.stack([np.asarray(normals(key, (dimension,)), float) for key in keys])
    matrix = factor.known(schedule)
    np.testing.assert_allclose(matrix @ np.concatenate(parts), normal, atol=2e-5)
    assert factor.first_std(schedule) == pytest.approx(1 / matrix[0, 0])


def test_a_buffered_factor_keeps_one_vector_a_buffer():
    schedule = turns(2000, 100, 20)
    BLT.check(schedule, 10**7)
    with pytest.raises(Refusal, match=r"must keep at most 1\.07 GB"):
        over_rounds(BLT.matrix(300)).check(turns(300, 10, 30), 10**7)


def test_banded_columns_have_norm_at_most_1():
    for bands, rounds in ((1, 5), (3, 7), (9, 4)):
        matrix = Banded(bands).matrix(rounds)
        assert np.linalg.norm(matrix, axis=0).max() == pytest.approx(1.0)
        assert not np.tril(matrix, -bands).any()
        assert (np.diag(matrix) > 0).all()


# ---- refusals


@dataclass(frozen=True)
class Doubled(RoundFactor):
    """Half the noise of its matrix, with exposures that say so on a sampled schedule."""

    def matrix(self, over, workload=None, /):
        return np.eye(over.size.rounds)

    def mechanism(self, schedule):
        return Banded(1).mechanism(schedule)

    def exposures(self, schedule):
        return 2 * super().exposures(schedule)


REFUSED = {
    "separation": (
        lambda: prepared(AnySchedule("toeplitz", 11, 6)),
        r"separation must be at most .*, got 11 and 10 of machine 0 \(rounds 1 and 11\)\. Set a smaller separation",
    ),
    "uses": (
        lambda: prepared(AnySchedule("toeplitz", 10, 5)),
        "uses must be at least .* got 5 and 6 of machine 0. Set larger",
    ),
    "secret": (
        lambda: prepared(AnySchedule("toeplitz", 10, 5), fpj.PoissonCohorts(60, 0.1)),
        "noise_schedule must be 'independent' under secret participation",
    ),
    "least": (lambda: AnySchedule("tree", 0), "separation must be at least 1, got 0"),
    "no use": (lambda: AnySchedule("tree", 2, 0), "uses must be at least 1, got 0"),
    "name": (lambda: AnySchedule("teee", 2), "unknown noise_schedule 'teee', did you mean 'tree'"),
    "kind": (lambda: over_rounds({"kind": "band"}), "unknown kind of noise_schedule 'band', did you mean 'banded'"),
    "key": (
        lambda: over_rounds({"kind": "banded", "band": 2}),
        "unknown key of noise_schedule 'banded' 'band', did you mean 'bands'",
    ),
    "missing": (lambda: over_rounds({"kind": "banded"}), "bands must be given"),
    "bands": (lambda: Banded(0), "bands must be at least 1, got 0"),
    "buffers": (lambda: fpj.BLT([0.5], [0.4, 0.3]), "scale must have one number per buffer, 1, got 2"),
    "decay": (lambda: fpj.BLT([1.5], [0.4]), r"decay must be numbers above 0 and at most 1, got \[1\.5\]"),
    "words": (lambda: fpj.BLT(cast(Any, ["a"]), [0.4]), "decay must be numbers above 0 and at most 1, got"),
    "scale": (lambda: fpj.BLT([0.5], [-0.4]), r"scale must be numbers positive and finite, got \[-0\.4\]"),
    "mechanism": (lambda: AnySchedule(Doubled(), 2), "mechanism must be that of RoundFactor, .* got that of Doubled"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    build, message = REFUSED[name]
    with pytest.raises(Refusal, match=message):
        build()


def test_a_stream_whose_matrix_is_another_is_refused():
    class Other(Tree):
        def matrix(self, over, workload=None, /):
            return np.eye(over.size.rounds)

        squares = Tree.squares
        contributions = Tree.contributions

    with pytest.raises(Refusal, match="matrix must be that of RoundFactor"):
        AnySchedule(Other(), 2)


def test_a_subclass_of_a_final_factor_is_refused():
    @dataclass(frozen=True)
    class Small(fpj.BLT):  # type: ignore[misc]
        def matrix(self, over, workload=None, /):
            return 1e-3 * super().matrix(over)

    with pytest.raises(Refusal, match=r"BLT must not be subclassed, .* got Small\. Subclass RoundFactor"):
        prepared(Small([0.5], [0.4]))


def test_a_dropout_counts_as_a_use():
    schedule = Schedule(2, np.array([[0], [0], [1]], np.int32), dropped=np.array([[False], [True], [False]]))
    with pytest.raises(Refusal, match=r"got 2 and 1 of machine 0 \(rounds 1 and 2\)"):
        AnySchedule("tree", 2).exposures(schedule)


def test_fewer_rounds_than_the_separation_are_allowed():
    schedule = fpj.Full(3).draw(1, np.random.default_rng(0))
    np.testing.assert_allclose(AnySchedule(BLT, 4).exposures(schedule), 1.0)


@pytest.mark.slow
def test_files_give_a_table():
    banded = {"kind": "any_schedule", "factor": {"kind": "banded", "bands": 2}, "separation": 2, "uses": 2}
    for schedule in (banded, {"kind": "blt", "decay": [0.9, 0.5], "scale": [0.3, 0.2]}, {"kind": "banded", "bands": 2}):
        file = {
            "title": "any schedule",
            "problem": {
                "dataset": "logistic",
                "options": {"examples": 12, "features": 2},
                "partition": {"kind": "iid"},
            },
            "participation": {"kind": "cyclic", "machines": 4, "per_round": 2, "rounds": 4},
            "protocol": [{"name": "fedavg", "mu": 1.0, "noise_schedule": schedule, **WORK}],
        }
        spec = experiment.parse(file)
        assert experiment.parse(experiment.to_mapping(spec)) == spec
        protocol: Any = listed.jobs(spec)[0].prepare().first.protocol
        assert isinstance(protocol.noise_schedule, KINDS[schedule["kind"]])
    assert over_rounds(banded) == AnySchedule(Banded(2), 2, 2)
    assert str(over_rounds(banded)) == "AnySchedule(Banded(bands=2), separation=2, uses=2)"
