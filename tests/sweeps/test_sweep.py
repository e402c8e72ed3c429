import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from flax import struct

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    DPMu2,
    Full,
    Metric,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Protocol,
    Seeds,
    Softmax,
    Squared,
    Uniform,
    WholeSpace,
    final,
    guarantee_of,
    linear_problem,
    ready,
    simulate,
    sweep,
)
from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.sweeps.configurations import axes_of, seed_labels, sweepable
from fedprivjax.sweeps.execute import execute, run_chunk
from fedprivjax.sweeps.prepare import ready_sweep

RNG = np.random.default_rng(71)
FEATURES = RNG.normal(size=(56, 5)).astype(np.float32)
FEATURES /= np.linalg.norm(FEATURES, axis=1, keepdims=True)
LABELS = np.argmax(FEATURES @ RNG.normal(size=(5, 3)), axis=1)
PROBLEM = linear_problem(
    FEATURES[:48],
    LABELS[:48],
    Softmax(3),
    feature_bound=1.0,
    constraint=Ball(1.0),
    test=(FEATURES[48:], LABELS[48:]),
)
SOME = Uniform(6, 3)
SEEDS = 3
METRICS = ("test_loss", "test_accuracy", "noise_norm")
COMMON = {"rounds": 8, "eval_every": 3, "metrics": METRICS}
PROTOCOL = DPMu2(clip=1.0, noise_schedule="gap")
ONE = {"runs": 1}
NO_TARGET = (
    "one of epsilon, mu and noise_std must be given, got none. Set epsilon (with delta), mu (GDP) or noise_std; "
    "epsilon = inf is non-private"
)
GRID = {"mu": [1.0, 4.0], "step_scale": [0.5, 1.0]}  # every grid here has four members: one program serves them all


def swept(over, protocol=PROTOCOL, problem=PROBLEM, **options):
    return sweep(protocol, problem, SOME, over=over, **{"seeds": SEEDS, **COMMON, **options})


def single(protocol, problem=PROBLEM, seed=0):
    return simulate(protocol, problem, SOME, seed=seed, **COMMON)


def close(dataset, run, names=METRICS):
    np.testing.assert_array_equal(dataset["round"], run.rounds)
    for name in names:
        np.testing.assert_allclose(dataset[name], run.metrics[name], rtol=1e-5, atol=1e-6)


def agree(one, other):
    for name in METRICS:
        np.testing.assert_allclose(one[name].values, other[name].values, rtol=1e-5, atol=1e-6)


def refusal(**options):
    settings = {"protocol": PROTOCOL, "problem": PROBLEM, "participation": SOME, "over": GRID, **COMMON, **options}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        ready_sweep(**settings)  # so before anything is compiled
    return str(caught.value)


@pytest.fixture(scope="module")
def grid():
    return swept(GRID)


def test_a_sweep_is_its_runs(grid):
    assert grid["test_loss"].dims == ("mu", "step_scale", "seed", "round")
    for mu in GRID["mu"]:
        for scale in GRID["step_scale"]:
            for seed in range(SEEDS):
                run = single(replace(PROTOCOL, mu=mu, step_scale=scale), seed=seed)
                member = grid.sel(mu=mu, step_scale=scale)
                close(member.sel(seed=seed), run)
                assert float(member["noise_std"]) == pytest.approx(run.protocol.noise_std)
                assert float(member["step_size"]) == pytest.approx(scale * run.protocol.step_size)
                assert float(member["realised_mu"].sel(seed=seed)) == pytest.approx(run.guarantee.mu)
    assert not grid["diverged"].any()
    # the members and the seeds are different runs, so that equality above says something
    assert np.unique(grid["test_loss"].isel(round=-1)).size == 12


@pytest.mark.parametrize("seed", [Seeds(1, 2, 3), pytest.param(Seeds(5, 5, 3), marks=pytest.mark.slow)])
def test_streams_of_a_seed_may_be_set_apart(grid, seed):
    found = swept(GRID, seeds=[seed, 0, 1])
    close(found.isel(mu=1, step_scale=0, seed=0), single(replace(PROTOCOL, mu=4.0, step_scale=0.5), seed=seed))
    agree(found.isel(seed=[1, 2]), grid.isel(seed=[0, 1]))


def test_seeds_are_named_by_their_noise_where_that_tells_them_apart():
    named = ready_sweep(PROTOCOL, PROBLEM, SOME, over=GRID, seeds=[7, Seeds(1, 1, 9)], **COMMON)
    assert seed_labels(named.seeds).tolist() == [7, 9]
    alike = ready_sweep(PROTOCOL, PROBLEM, SOME, over=GRID, seeds=[Seeds(1, 1, 9), Seeds(2, 2, 9)], **COMMON)
    assert seed_labels(alike.seeds).tolist() == [0, 1]


def least_budget():
    found = re.fullmatch(r"memory_budget must be at least (\d+) bytes for one run, got 1", refusal(memory_budget=1))
    assert found
    return int(found[1])


@pytest.mark.slow
def test_chunks_change_no_number(grid):
    seen = []
    agree(swept(GRID, memory_budget=least_budget(), mesh=ONE, progress=lambda *done: seen.append(done)), grid)
    assert seen == [(done, 12) for done in range(1, 13)]


@pytest.mark.slow
def test_a_small_sweep_reports_once_for_a_seed(grid):
    seen = []
    swept(GRID, progress=lambda *done: seen.append(done), mesh=ONE)
    assert seen == [(4, 12), (8, 12), (12, 12)]


def test_common_noise_is_shared_by_the_members(grid):
    unit = grid["noise_norm"] / grid["noise_std"]
    assert (unit > 0).all()
    first = unit.isel(mu=0, step_scale=0)
    np.testing.assert_allclose(unit, np.broadcast_to(first, unit.shape), rtol=1e-5)
    assert np.unique(np.round(first, 4)).size == 9  # but not by seeds or rounds


@pytest.mark.slow
def test_without_common_noise_every_member_draws_its_own(grid):
    own = swept(GRID, common_noise=False)
    unit = (own["noise_norm"] / own["noise_std"]).isel(round=-1)
    assert np.unique(np.round(unit, 4)).size == 12
    np.testing.assert_array_equal(own["noise_std"], grid["noise_std"])
    assert own.attrs["noise"] != grid.attrs["noise"]


@pytest.mark.slow
def test_chunks_change_no_members_draws():
    """Uneven chunks: 3 seeds as 2 + 1, 4 configurations as 3 + 1."""
    options = {"common_noise": False, "mesh": ONE, "min_chunks": 1}
    whole = ready_sweep(PROTOCOL, PROBLEM, SOME, over=GRID, seeds=SEEDS, **options, **COMMON)
    assert whole.sizes == (3, 4)
    seen = []
    cut = execute(replace(whole, sizes=(2, 3)), lambda *done: seen.append(done))
    agree(cut, swept(GRID, common_noise=False))
    assert seen == [(6, 12), (8, 12), (11, 12), (12, 12)]


@pytest.mark.slow
def test_everything_may_be_resampled_along_an_axis(grid):
    found = swept(GRID, resample=["step_scale"])
    assert found["test_loss"].dims == grid["test_loss"].dims
    np.testing.assert_array_equal(found["noise_std"], grid["noise_std"])
    unit = (found["noise_norm"] / found["noise_std"]).isel(round=-1)
    np.testing.assert_allclose(unit.isel(mu=0), unit.isel(mu=1), rtol=1e-5)  # shared along mu
    assert np.unique(np.round(unit.isel(mu=0), 4)).size == 6  # but not along the other
    for place, scale in enumerate(GRID["step_scale"]):
        member = found.sel(mu=4.0, step_scale=scale, seed=2)
        run = single(replace(PROTOCOL, mu=4.0, step_scale=scale), seed=Seeds(2, 2, 2).resample(place))
        close(member, run)
        assert float(member["realised_mu"]) == pytest.approx(run.guarantee.mu)
    assert refusal(resample=["clip"]) == "unknown axis to resample 'clip' (known: mu, step_scale)"


@pytest.mark.slow
def test_everything_may_be_resampled_along_all_axes():
    everything = swept(GRID, resample=["mu", "step_scale"])
    close(
        everything.isel(mu=1, step_scale=0, seed=0),
        single(replace(PROTOCOL, mu=4.0, step_scale=0.5), seed=Seeds(0, 0, 0).resample(2)),
    )


@pytest.mark.slow
def test_sharing_noise_shifts_the_distribution_of_the_selected_best():
    """The smallest final noise norm of four settings: one sample if shared, the minimum of four if independent."""
    grid = {"step_scale": [1.0, 1.0001, 1.0002, 1.0003]}
    least = [
        swept(grid, replace(PROTOCOL, mu=4.0), seeds=60, resample=resample)["noise_norm"]
        .isel(round=-1)
        .min("step_scale")
        for resample in ([], ["step_scale"])
    ]
    error = float(np.sqrt(sum(values.var("seed") / 60 for values in least)))
    assert float(least[0].mean("seed") - least[1].mean("seed")) > 5 * error


def test_an_epsilon_axis_is_the_mu_axis_converted():
    epsilons = [0.5, 2.0, 10.0, 65.0]
    by_epsilon = swept({"epsilon": epsilons}, delta=1e-6)
    by_mu = swept({"mu": gdp.mu(epsilons, 1e-6)}, delta=1e-6)
    np.testing.assert_array_equal(by_epsilon["epsilon"], epsilons)
    np.testing.assert_allclose(by_epsilon["noise_std"], by_mu["noise_std"].values, rtol=1e-12)
    agree(by_epsilon, by_mu)
    np.testing.assert_allclose(by_epsilon["realised_mu"].max("seed"), by_mu["mu"].values, rtol=1e-9)
    np.testing.assert_allclose(by_epsilon["realised_epsilon"].max("seed"), epsilons, rtol=1e-6)


@pytest.mark.slow
def test_a_mu_axis_is_converted_for_methods_that_sample_records():
    """Full batches are Gaussian mechanisms, so μ → ε → noise gives back the noise of μ-GDP, 2L√R/(nμ)."""
    problem = linear_problem(FEATURES.reshape(4, 14, 5), LABELS.reshape(4, 14), Softmax(3), feature_bound=1.0)
    protocol = NoisyMinibatchSGD(sampler="full", step_size=0.1)
    found = sweep(protocol, problem, Full(4), over={"mu": [1.0, 8.0, np.inf]}, seeds=1, rounds=9, delta=1e-6)
    expected = 2 * problem.lipschitz * np.sqrt(9) / (14 * found["mu"].values)
    np.testing.assert_allclose(found["noise_std"].values, expected, rtol=1e-6)  # `CLOSE` of the search
    np.testing.assert_allclose(found["realised_epsilon"].isel(seed=0), gdp.epsilon(found["mu"].values, 1e-6), rtol=1e-6)
    with pytest.raises(ValueError, match="delta must be None with a target mu"):
        sweep(replace(protocol, delta=1e-6), problem, Full(4), over={"mu": [1.0]}, seeds=1, rounds=9)


def test_a_radius_axis():
    radii = [0.25, 0.5, 1.0, 3.0]
    found = swept({"radius": radii}, replace(PROTOCOL, mu=4.0))
    for radius in radii:
        close(
            found.sel(radius=radius, seed=1),
            single(replace(PROTOCOL, mu=4.0), replace(PROBLEM, constraint=Ball(radius)), seed=1),
        )
    assert np.unique(found["step_size"]).size == 4  # the theory's step knows the diameter


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [DPMu2(mu=4.0), NoisySGD(mu=4.0, step_size=0.1)])
def test_a_guarantee_names_the_constants_of_its_own_radius(protocol):
    loss = Squared(1.0)  # whose constants depend on the ball
    problem = linear_problem(FEATURES, LABELS == 1, loss, feature_bound=1.0, constraint=Ball(1.0))
    found = swept({"radius": [0.25, 3.0]}, protocol, problem, seeds=1, rounds=2, metrics=("noise_norm",))
    words = []
    for radius in (0.25, 3.0):
        own = replace(problem, constraint=Ball(radius))
        guarantee = guarantee_of(found.sel(radius=radius))
        run = simulate(protocol, own, SOME, rounds=2, metrics=("noise_norm",))
        assert str(guarantee) == str(run.guarantee)
        assert f"{own.lipschitz:.4g}-Lipschitz" in str(guarantee)
        words.append(str(guarantee))
    assert words[0] != words[1]
    with pytest.raises(ValueError, match=r"dataset must have a single value along radius"):
        guarantee_of(found)


def test_a_radius_axis_of_an_unclipped_protocol_moves_its_sensitivity():
    found = swept({"radius": [0.25, 0.5, 1.0, 3.0]}, DPMu2(mu=4.0), seeds=[2], rounds=4)
    increments = 2**0.5 + 2 * 0.5 * 2 * np.array([0.25, 0.5, 1.0, 3.0])  # S = G + 2LD
    np.testing.assert_allclose(found["noise_std"], 2 * increments / 4.0, rtol=1e-6)
    # what the results say of their assumptions holds for each of these sets, and is not the problem's own
    for radius in found["radius"].values:
        assert f"diameter {2 * radius:g}" in str(guarantee_of(found.sel(radius=radius)))


def test_a_mu_axis_with_infinity():
    found = swept({"mu": [1.0, 4.0, 16.0, np.inf]})
    close(found.sel(mu=np.inf, seed=2), single(replace(PROTOCOL, mu=np.inf), seed=2))
    close(found.sel(mu=16.0, seed=2), single(replace(PROTOCOL, mu=16.0), seed=2))
    assert float(found["noise_std"].sel(mu=np.inf)) == 0.0
    assert np.isinf(found["realised_mu"].sel(mu=np.inf)).all()
    assert np.isinf(found["realised_epsilon"].sel(mu=np.inf)).all()
    assert (found["noise_norm"].sel(mu=np.inf) == 0).all()


@pytest.mark.parametrize(
    ("name", "values", "fixed"),
    [
        ("clip", [0.1, 0.5, 1.0, 2.0], {"mu": 4.0}),
        pytest.param("step_size", [0.01, 0.02, 0.05, 0.1], {"mu": 4.0}, marks=pytest.mark.slow),
        pytest.param("noise_std", [0.1, 0.5, 1.0, 2.0], {}, marks=pytest.mark.slow),
    ],
)
def test_other_axes(name, values, fixed):
    fixed = {"clip": 1.0, **fixed} if name != "clip" else fixed  # nothing is both set and swept
    found = swept({name: values}, replace(PROTOCOL, **{"clip": None, **fixed}))
    for value in (values[0], values[2]):
        close(found.sel({name: value, "seed": 1}), single(replace(PROTOCOL, **{**fixed, name: value}), seed=1))
    np.testing.assert_array_equal(found[name], values)
    assert list(found["test_loss"].dims) == [name, "seed", "round"]


@pytest.mark.slow
def test_without_a_grid_there_are_seeds_only():
    found = swept(None, NoisySGD(mu=2.0, clip=1.0), seeds=2, metrics=("test_loss",))
    assert dict(found.sizes) == {"seed": 2, "round": 3, "iterate": 2}
    run = single(NoisySGD(mu=2.0, clip=1.0), seed=1)
    for iterate, metrics in run.iterates.items():
        np.testing.assert_allclose(found["test_loss"].sel(seed=1, iterate=iterate), metrics["test_loss"], rtol=1e-5)


@pytest.mark.slow
def test_the_other_iterates_of_a_protocol_are_a_dimension_of_its_points_metrics_only():
    grid = swept(
        {"mu": [1.0, 4.0]},
        NoisySGD(clip=1.0, average=True, step_size=0.3),
        seeds=2,
        metrics=("test_loss", "noise_norm"),
    )
    assert grid["iterate"].values.tolist() == ["output", "last"]
    assert grid["test_loss"].dims == ("mu", "seed", "round", "iterate")
    assert grid["noise_norm"].dims == ("mu", "seed", "round")
    last = single(NoisySGD(mu=4.0, clip=1.0, step_size=0.3), seed=1)  # reports what the other records as "last"
    ours = final(grid, "test_loss", "last").sel(mu=4.0, seed=1)
    np.testing.assert_allclose(ours, last.metrics["test_loss"][-1], rtol=1e-5)
    assert abs(float(final(grid, "test_loss").sel(mu=4.0, seed=1) - ours)) > 1e-3
    assert "iterate" not in swept({"mu": [1.0, 4.0]}, seeds=2).coords


@pytest.mark.slow
def test_a_custom_metric_is_recorded_for_every_iterate_and_marked():
    size = Metric("size", lambda problem, snapshot: jnp.linalg.norm(snapshot.params), private=lambda problem: True)
    unmarked = Metric("level", lambda problem, snapshot: jnp.max(snapshot.params))
    protocol = NoisySGD(mu=2.0, clip=1.0, average=True, step_size=0.1)
    grid = swept(None, protocol, seeds=1, metrics=(size, unmarked))
    assert grid.attrs["non_private_metrics"] == "size, level (not known)"
    run = simulate(protocol, PROBLEM, SOME, seed=0, **{**COMMON, "metrics": [size]})
    last = simulate(replace(protocol, average=False), PROBLEM, SOME, seed=0, **COMMON)
    assert run.metrics["size"][-1] == pytest.approx(np.linalg.norm(run.params), rel=1e-5)
    assert run.iterates["last"]["size"][-1] == pytest.approx(np.linalg.norm(last.params), rel=1e-5)
    found = [final(grid, "size", name).item() for name in ("output", "last")]
    np.testing.assert_allclose(found, [run.iterates[name]["size"][-1] for name in ("output", "last")], rtol=1e-5)


def test_other_numbers_and_seeds_are_no_other_program(grid):
    before = run_chunk._cache_size()
    swept({"mu": [0.3, 9.0], "step_scale": [0.1, 7.0]}, seeds=[11, 12, 13])
    swept({"clip": [0.3, 9.0], "step_size": [0.1, 7.0]}, replace(PROTOCOL, clip=None, mu=3.0))
    swept({"radius": [0.3, 9.0, 10.0, 11.0]}, replace(PROTOCOL, mu=3.0), delta=1e-3)
    assert run_chunk._cache_size() <= before
    swept(GRID, eval_every=4)  # and a new program would be noticed
    assert run_chunk._cache_size() == before + 1


@pytest.mark.slow
def test_a_member_that_diverges_is_marked_and_stops_no_other():
    free = replace(PROBLEM, constraint=WholeSpace())
    protocol = DPMu2(mu=0.5, clip=1.0)
    steps = [0.1, 1e38, 0.2, 3e38]
    found = swept({"step_size": steps}, protocol, free)
    assert found["diverged"].values.tolist() == [[False] * SEEDS, [True] * SEEDS, [False] * SEEDS, [True] * SEEDS]
    assert not np.isfinite(found["test_loss"].sel(step_size=1e38).isel(round=-1)).any()
    for step in (0.1, 0.2):
        close(found.sel(step_size=step, seed=0), single(replace(protocol, step_size=step), free))
    assert single(replace(protocol, step_size=1e38), free).diverged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"over": {"step_sise": [1.0]}},
            f"unknown swept setting 'step_sise', did you mean 'step_size'? (known: {', '.join(sweepable(DPMu2))})",
        ),
        ({"over": {"mu": [1.0, 2.0, 1.0]}}, "mu must be swept over distinct numbers, got [1.0, 2.0, 1.0]"),
        ({"over": {"mu": [1.0, -2.0]}}, "mu must be positive, got -2.0"),
        ({"over": {"clip": [0.0]}, "protocol": DPMu2()}, "clip must be positive, got 0.0"),
        ({"over": {"epsilon": [2]}, "protocol": DPMu2(mu=3.0)}, "mu must be left out if epsilon is swept, got 3.0"),
        ({"over": {"epsilon": [np.nan]}}, "epsilon must be swept over numbers, got nan"),
        ({"over": {"step_size": [np.inf]}}, "step_size must be finite, got inf"),
        ({"over": {"mu": []}}, "mu must be swept over a list of numbers, got []"),
        ({"over": {"mu": [[1.0, 2.0]]}}, "mu must be swept over a list of numbers, got [[1.0, 2.0]]"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seeds": []}, "seeds must be at least 1, got 0"),
        ({"seeds": [-1]}, "seed must be at least 0, got -1"),
        ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
        (
            {"over": {"mu": [1.0], "noise_std": [0.5]}},
            "mu or noise_std must be given, not both, got both as axes",
        ),
        ({"over": None}, NO_TARGET),
        (
            {"over": {"radius": [1.0]}, "problem": replace(PROBLEM, constraint=WholeSpace())},
            "radius must be a size of the constraint set to be swept, got the whole space",
        ),
        (
            {"over": {"radius": [1.0, 0.5]}, "problem": replace(PROBLEM, start=np.eye(3, 5) / 3**0.5)},
            NO_TARGET,
        ),
        (
            {
                "protocol": replace(PROTOCOL, mu=1.0),
                "over": {"radius": [1.01, 0.5]},
                "problem": replace(PROBLEM, start=np.eye(3, 5) / 3**0.5),
            },
            "start must lie in the constraint set, a ball of radius 0.5",
        ),
        (
            {
                "protocol": replace(PROTOCOL, mu=1.0),
                "over": {"radius": [0.5, 1.5]},
                "problem": replace(PROBLEM, own_smoothness=1.0),
            },
            "constraint must lie in a ball of radius 1, where lipschitz and smoothness were declared, "
            "got a ball of radius 1.5",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_refusals(options, message):
    assert refusal(**options) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": {"mu": [1.0, 2.0], "epsilon": [1.0, 2.0]}}, r"mu.*epsilon|epsilon.*mu"),
        ({"over": {"mu": ["one"]}}, r"^mu must be swept over a list of numbers, got \['one'\]$"),
        ({"over": {"mu": [[1.0], [1.0, 2.0]]}}, r"^mu must be swept over a list of numbers"),
        ({"seeds": -2}, r"^seeds must be at least 1, got -2$"),
        ({"seeds": 2.5}, r"^seeds must be "),
        ({"seeds": [1, 1]}, r"^seeds must be distinct"),
        ({"delta": 2.0}, r"^delta must "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_would_fail_later_or_quietly_is_refused_by_name(options, message):
    assert re.search(message, refusal(**options))


def test_any_integer_counts_seeds():
    assert ready_sweep(PROTOCOL, PROBLEM, SOME, over=GRID, seeds=np.int64(2), **COMMON).runs == (2, 4)


def test_preparing_compiles_nothing_and_executing_gives_the_same(grid):
    before = run_chunk._cache_size()
    prepared = ready_sweep(PROTOCOL, PROBLEM, SOME, over=GRID, seeds=SEEDS, **COMMON)
    assert prepared.runs == (3, 4)
    assert run_chunk._cache_size() <= before
    xr.testing.assert_identical(execute(prepared).drop_vars("seconds"), grid.drop_vars("seconds"))


@pytest.mark.slow
def test_draws_whose_cheapest_noise_differs_share_one_kind():
    """One machine per round: the covariance sampler is the cheapest only if no machine is absent for long."""
    rows = RNG.normal(size=(200, 2))
    problem = linear_problem(rows, rows[:, 0] > 0, Softmax(2), constraint=Ball(1.0))
    protocol = DPMu2(mu=1.0, clip=1.0, step_size=0.1)
    options = {"rounds": 200, "eval_every": 200, "metrics": ["noise_norm"]}
    kinds = {ready(protocol, problem, Uniform(20, 1), seed=seed, **options).mechanism.name for seed in range(8)}
    assert kinds == {"covariance", "cancelling"}
    start = ready_sweep(protocol, problem, Uniform(20, 1), seeds=8, **options)
    assert {one.mechanism.name for one in start.starts} == {"cancelling"}
    assert np.isfinite(execute(start).noise_norm).all()


def test_what_calibration_fills_in_is_no_axis():
    with pytest.raises(Refusal, match=r"^over must name settings that can be swept .*, got 'schedule'\. "):
        axes_of(AcceleratedMinibatchSGD(), {"schedule": [1.0]})


def test_a_leaf_without_a_default_is_an_axis_and_so_is_one_with_a_factory():
    @struct.dataclass
    class Weighted(SGD):
        weight: Any = struct.field(kw_only=True)
        weights: Any = struct.field(default_factory=lambda: np.ones(2))

    def axes(over, **settings):
        pair = Protocol(Weighted(weight=5.0, **settings), privacy=NoisyMessages(clip=1.0), mu=1.0)
        return {name: axis.tolist() for name, axis in axes_of(pair, over).items()}

    over = {"algorithm.weight": [1.0, 2.0], "algorithm.weights": [3.0]}
    assert axes(over) == over
    assert axes({"algorithm.weights": [3.0]}, weights=np.zeros(2)) == {"algorithm.weights": [3.0]}
