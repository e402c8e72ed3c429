"""Box, simplex, l1 ball and custom sets: projections compared with optimisers, sizes by sampling, runs and sweeps."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import DATA, POOL, SOME_MACHINES, sparing
from flax import struct
from scipy.optimize import minimize

from fedprivjax import (
    Ball,
    Box,
    ConstraintSet,
    DPMu2,
    L1Ball,
    NoisySGD,
    Refusal,
    Simplex,
    Softmax,
    WholeSpace,
    check_protocol,
    final,
    general_problem,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.plan.draw import draw_plan
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.problem.constraints import flat

SETS = {
    "box": Box(-0.5, 1.5, dimension=5),
    "box-beside-zero": Box(0.25, 1.0, dimension=5),
    "simplex": Simplex(2.0),
    "l1": L1Ball(1.5),
}
RNG = np.random.default_rng(5)
POINTS = [scale * RNG.normal(size=5) + shift for scale in (0.1, 1.0, 30.0) for shift in (0.0, 2.0)]


def by_optimiser(which, point):
    """Return the nearest point of a set by scipy's SLSQP, in smooth variables."""
    count = point.size
    constraints, bounds, start = [], [(None, None)] * count, np.full(count, 0.4)
    parts = np.eye(count)
    if isinstance(which, Box):
        bounds = [(which.low, which.high)] * count
    elif isinstance(which, Simplex):
        bounds = [(0, None)] * count
        constraints = [{"type": "eq", "fun": lambda v: v.sum() - which.scale}]
    else:  # a difference of two nonnegative parts
        parts, bounds, start = np.hstack([parts, -parts]), [(0, None)] * (2 * count), np.full(2 * count, 0.1)
        constraints = [{"type": "ineq", "fun": lambda v: which.radius - v.sum()}]
    found = minimize(
        lambda v: np.sum((parts @ v - point) ** 2),
        start,
        jac=lambda v: 2 * parts.T @ (parts @ v - point),
        bounds=bounds,
        constraints=constraints,
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return parts @ found.x


@pytest.mark.parametrize("which", SETS.values(), ids=SETS)
def test_a_projection_is_the_nearest_point(which):
    for point in POINTS:
        found = flat(which.project(point.astype(np.float32)))
        np.testing.assert_allclose(found, by_optimiser(which, point), atol=2e-5 * (1 + np.abs(point).max()))
        assert which.contains(found)
        np.testing.assert_allclose(which.project(found.astype(np.float32)), found, atol=1e-6)


@pytest.mark.parametrize("which", SETS.values(), ids=SETS)
def test_sizes_are_attained_and_never_exceeded(which):
    raw = np.random.default_rng(6).normal(size=(400, 5)).astype(np.float32) * 100
    points = np.asarray(jax.vmap(which.project)(raw), float)
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert 0.999 * which.diameter <= apart.max() <= which.diameter * (1 + 1e-6)
    norms = np.linalg.norm(points, axis=1)
    assert 0.999 * which.radius <= norms.max() <= which.radius * (1 + 1e-6)


@pytest.mark.parametrize("which", SETS.values(), ids=SETS)
def test_a_pytree_of_any_shape_is_projected_as_one_vector(which):
    class Pair(NamedTuple):
        left: Any
        right: Any

    vector = jnp.asarray(POINTS[3], jnp.float32)
    tree = {"a": [vector[0], (vector[1:3].reshape(2, 1),)], "b": Pair(vector[3:4], vector[4])}
    projected = which.project(tree)
    assert jax.tree.structure(projected) == jax.tree.structure(tree)
    assert jax.tree.map(jnp.shape, projected) == jax.tree.map(jnp.shape, tree)
    np.testing.assert_allclose(flat(projected), which.project(vector), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("which", [pytest.param(Simplex(1.0), marks=pytest.mark.slow), L1Ball(3.0)])
@pytest.mark.parametrize("scale", sparing([1e-4, 1.0, 1e4], [1.0]))
def test_many_parameters_are_projected_within_rounding(which, scale):
    point = scale * np.random.default_rng(1).normal(size=100_000).astype(np.float32)
    assert which.contains(which.project(point))
    assert not which.contains(which.project(point) * 1.01 + 1e-5)


@pytest.mark.parametrize("which", [Simplex(1.0), L1Ball(1.0)])
@pytest.mark.parametrize("length", [1e-4, 1e-2])
def test_a_step_from_a_point_of_many_parameters_stays_and_is_no_longer_than_it_was(which, length):
    """One of 10⁵ parameters is large and many are just above zero.

    A threshold from float32 sums alone is wrong by a percent of the set's size, many times a short step. Guarantees
    depend on both properties.
    """
    project, step = jax.jit(which.project), np.random.default_rng(2).normal(size=100_000)
    inside = np.zeros(100_000, np.float32)
    inside[7] = 1.0
    outside = np.float32(inside + length * step / np.linalg.norm(step))
    reached = flat(project(outside))
    assert abs(np.abs(reached).sum() - 1) < 1e-4
    exact = flat(outside) - flat(inside)
    assert np.linalg.norm(reached - flat(inside)) <= np.linalg.norm(exact) + 2.0**-22


def test_contains_agrees_with_the_definition_of_a_set():
    assert Box(0.0, 1.0).contains(np.array([0.0, 1.0]))
    assert not Box(0.0, 1.0).contains(np.array([0.0, 1.01]))
    assert Box(0.0, np.inf).contains(np.array([0.0, 1e9]))
    assert not Simplex(1.0).contains(np.array([0.5, 0.4]))
    assert not Simplex(1.0).contains(np.array([1.5, -0.5]))
    assert not L1Ball(1.0).contains(np.array([0.6, -0.5]))
    assert Box(0.0, np.inf, dimension=3).diameter == np.inf
    assert (Box(0.2, 0.8).within(Box(0.0, 1.0)), Box(0.2, 1.1).within(Box(0.0, 1.0))) == (True, False)
    assert (L1Ball(1.0).within(L1Ball(2.0)), L1Ball(1.0).within(Ball(2.0)), Ball(1.0).within(Ball(1.0))) == (
        True,
        False,
        True,
    )
    assert not Simplex(1.0).within(Simplex(2.0))


PROTOCOLS = {"mu2": DPMu2(mu=6.0, clip=0.5), "sgd": NoisySGD(mu=6.0, clip=0.5)}


def on(which, **options):
    return linear_problem(*DATA[:2], Softmax(3), feature_bound=1.0, constraint=which, test=DATA[2:], **options)


@pytest.mark.slow
@pytest.mark.parametrize("which", [Box(-0.2, 0.3), Simplex(2.0), L1Ball(1.5)])
def test_runs_stay_in_the_set_and_their_default_step_follows_from_its_diameter(which):
    problem = on(which)
    assert problem.constraint.contains(problem.start)
    diameter = problem.constraint.diameter
    run = simulate(PROTOCOLS["sgd"], problem, SOME_MACHINES, rounds=12, metrics=["noise_norm"])
    assert problem.constraint.contains(run.params)
    plan = draw_plan(problem, SOME_MACHINES, 12)
    plain = replace(PROTOCOLS["sgd"], clip=None)
    steps = [calibrate(plain, each, plan).step_size for each in (problem, on(Ball(diameter / 2)))]
    assert steps[0] == pytest.approx(steps[1])
    unclipped = replace(problem, own_smoothness=0.5)
    stated = DPMu2(mu=1.0, step_size=0.1).rounds.bound(unclipped, plan.size.machines)
    assert stated.norm == pytest.approx(problem.lipschitz + diameter)


TOUCHED = (
    "stable structure and dtypes",
    "jit equals eager",
    "a prefix of a longer run",
    "the target is met",
    "the transcript follows the run",
)


@pytest.mark.slow
@pytest.mark.parametrize("which", [Box(-0.2, 0.3), Simplex(2.0), L1Ball(1.5)], ids=["box", "simplex", "l1"])
def test_the_contract_holds_on_every_set(which):
    check_protocol(DPMu2(mu=6.0, clip=0.5, step_size=0.02), on(which), SOME_MACHINES, properties=TOUCHED)


@struct.dataclass
class Halfspace(ConstraintSet):
    """Parameters whose mean is at most `offset`."""

    offset: Any

    def project(self, params):
        return params - jnp.maximum(jnp.mean(params) - self.offset, 0.0)


def test_a_custom_set_is_a_projection_with_numbers():
    assert Halfspace(0.0).contains(np.array([-1.0, 1.0]))
    assert not Halfspace(0.0).contains(np.array([-1.0, 1.1]))
    problem = on(Halfspace(0.1))
    assert (problem.constraint.diameter, problem.constraint.sizes) == (np.inf, ("offset",))
    runs = sweep(
        NoisySGD(mu=6.0, clip=0.5, step_size=3.0),
        general_problem(lambda w, x: -jnp.sum(w) * x, np.ones(24), np.zeros(3), constraint=Halfspace(0.1)),
        SOME_MACHINES,
        over={"offset": [0.05, 0.3]},
        seeds=1,
        rounds=6,
        metrics=["train_loss"],
    )
    np.testing.assert_allclose(np.ravel(final(runs, "train_loss")), [-0.15, -0.9], rtol=0.1)
    with pytest.raises(TypeError, match="must define project"):
        ConstraintSet().project(np.ones(2))


class Bare(ConstraintSet):
    def project(self, params):
        return params


@struct.dataclass
class Unprojected(ConstraintSet):
    pass


@struct.dataclass
class Flat(ConstraintSet):
    def project(self, params):
        return jnp.ravel(params)


@struct.dataclass
class Narrow(ConstraintSet):
    def project(self, params):
        return jnp.minimum(params, jnp.ones(7))


@struct.dataclass
class OnHost(ConstraintSet):
    def project(self, params):
        return np.minimum(params, 1.0) if np.asarray(params).max() > 1 else params


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (Bare(), "constraint Bare must be a flax.struct.dataclass, got a class without that decorator"),
        (Unprojected(), "constraint Unprojected must define project(self, params), the nearest point of the set, got"),
        (
            Flat(),
            "result of Flat.project must have leaves of the same shapes as the parameters ([(3, 5)]), got [(15,)]",
        ),
        (Narrow(), "Narrow.project must take parameters [3, 5] in a jax program, got "),
        (OnHost(), "OnHost.project must take parameters [3, 5] in a jax program, got TracerArrayConversionError: "),
        (Halfspace, "constraint must be a set, such as Ball(radius), got the class Halfspace"),
    ],
)
@pytest.mark.parametrize("start", [None, np.zeros((3, 5))])
def test_invalid_custom_sets_are_refused(which, message, start):
    with pytest.raises(Refusal) as caught:
        on(which, start=start)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("which", "over"),
    [
        (Box(-1.0, 1.0), {"high": [0.2, 0.6]}),
        (L1Ball(1.0), {"radius": [0.3, 1.0]}),
    ],
    ids=["box", "l1"],
)
@pytest.mark.slow
def test_the_size_of_a_set_is_swept(which, over):
    protocol, options = NoisySGD(mu=6.0, clip=0.5), {"rounds": 6, "metrics": ["test_loss"]}
    swept = sweep(protocol, on(which), SOME_MACHINES, over=over, seeds=1, **options)
    ((name, values),) = over.items()
    alone = [simulate(protocol, on(replace(which, **{name: value})), SOME_MACHINES, **options) for value in values]
    expected = [run.metrics["test_loss"][-1] for run in alone]
    assert expected[0] != pytest.approx(expected[1], rel=1e-3)
    np.testing.assert_allclose(np.ravel(final(swept, "test_loss")), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(1.0, 1.0), "high must be above low (1), got 1"),
        (lambda: Box("a", 1.0), "low must be a number, got 'a'"),
        (lambda: Box(0.0, np.nan), "high must be a number, got nan"),
        (lambda: Box(0.0, 1.0).diameter, "dimension must be given for the sizes of a Box outside a problem, got None"),
        (lambda: Simplex(0.0), "scale must be positive, got 0.0"),
        (lambda: L1Ball(-1.0), "radius must be positive, got -1.0"),
        (lambda: on(8.0), "constraint must be a set, such as Ball(8.0), got 8.0"),
        (
            lambda: on(Box(0.1, 1.0), start=np.zeros((3, 5))),
            "start must lie in the constraint set, a box from 0.1 to",
        ),
        (
            lambda: on(Simplex(1.0), start=np.zeros((3, 5))),
            "start must lie in the constraint set, a simplex of sc",
        ),
        (
            lambda: on(L1Ball(1.0), start=np.ones((3, 5))),
            "start must lie in the constraint set, an l1 ball of r",
        ),
        (
            lambda: general_problem(lambda w, x: jnp.sum(w) * x, np.ones(3), np.ones(1), constraint=Simplex(1.0)),
            "a simplex must have at least two parameters, got one",
        ),
        (
            lambda: sweep(PROTOCOLS["sgd"], on(Simplex(1.0)), SOME_MACHINES, over={"scale": [1.0, 2.0]}, seeds=1),
            "start must lie in the constraint set, a simplex of scale 2",
        ),
        (
            lambda: sweep(PROTOCOLS["sgd"], on(Box(-1.0, 1.0)), SOME_MACHINES, over={"radius": [1.0]}, seeds=1),
            "radius must be a size of the constraint set to be swept, got a box from -1 to 1",
        ),
        (
            lambda: sweep(
                PROTOCOLS["sgd"], on(L1Ball(1.0), lipschitz=2.0), SOME_MACHINES, over={"radius": [2.0]}, seeds=1
            ),
            "constraint must lie in an l1 ball of radius 1, where lipschitz and smoothness were declared, got an l1",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(Refusal) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_whole_space_and_the_pool_are_as_before():
    assert WholeSpace().described == "the whole space"
    assert (POOL.constraint, Ball(2.0).sizes, WholeSpace().sizes) == (Ball(1.0), ("radius",), ())
