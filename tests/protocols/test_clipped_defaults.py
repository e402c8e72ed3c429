"""Default steps of clipped runs are close to the best of a grid. Runs without a clip keep the papers' steps."""

from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Balanced,
    Ball,
    DPMu2,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    OnePass,
    ReducedTreeMomentum,
    Refusal,
    Squared,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
    WholeSpace,
    datasets,
    from_dataset,
    linear_problem,
    sweep,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.features import mapped
from fedprivjax.method.default_steps import gathered_reach, noise_reach
from fedprivjax.protocols import PROTOCOLS

# ---- comparison with a grid

DIGITS = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
OWN = from_dataset(datasets.load("digits"), constraint=Ball(8.0), partition_table=np.arange(1400).reshape(20, 70))
MACHINES, USERS = Full(20), OnePass(1400, 140)
CELLS = {
    "dp_mu2": (DPMu2(epsilon=8.0, clip=1.6, trust="server"), DIGITS, MACHINES, 70),
    "noisy_sgd": (NoisySGD(epsilon=8.0, clip=1.0, trust="server"), DIGITS, MACHINES, 70),
    "stale_momentum": (StaleMomentum(epsilon=40.0, clip=1.6), DIGITS, MACHINES, 70),
    "noisy_minibatch_sgd": (NoisyMinibatchSGD(epsilon=8.0, clip=1.0, sampler="full"), OWN, MACHINES, 30),
    "accelerated_minibatch_sgd": (AcceleratedMinibatchSGD(epsilon=8.0, clip=1.0, sampler="full"), OWN, MACHINES, 30),
    "local_sgd": (LocalSGD(epsilon=40.0, clip=1.0, batch=10), OWN, MACHINES, 20),
    "user_sgd": (UserSGD(epsilon=8.0, clip=1.0, trust="server"), DIGITS, USERS, 10),
    "user_agd": (UserAGD(epsilon=8.0, clip=1.0, trust="server"), DIGITS, USERS, 10),
    "tree_momentum": (TreeMomentum(epsilon=8.0, clip=1.0, batch=7), OWN, MACHINES, 60),
    "reduced_tree_momentum": (ReducedTreeMomentum(epsilon=8.0, clip=1.0, batch=7), OWN, MACHINES, 60),
}
LEARNT = {"stale_momentum": 0.3, "local_sgd": 0.3}  # of ten classes, guessed right in a tenth
SCALES = [1 / 16, 1 / 4, 1.0, 4.0, 16.0]


def test_every_method_with_a_default_step_has_a_cell():
    without = {"fedavg", "scaffold", "dsgd"}
    assert set(CELLS) | without == {name for name in PROTOCOLS if not name.startswith("released")}


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_the_default_step_is_near_the_best_of_a_grid(name):
    protocol, problem, participation, rounds = CELLS[name]
    options = {"rounds": rounds, "seeds": 3, "metrics": ["test_accuracy"], "eval_every": rounds}
    found = sweep(protocol, problem, participation, over={"step_scale": SCALES}, **options).test_accuracy
    output = found.isel(iterate=0) if "iterate" in found.dims else found
    accuracy = output.isel(round=-1).mean("seed")
    assert accuracy.sel(step_scale=1.0) > accuracy.max() - 0.04
    assert accuracy.sel(step_scale=1.0) > LEARNT.get(name, 0.6)


FINE = {  # a protocol, its rounds, and the cells of eight in which the default is within 2 points of the best
    "noisy_sgd": (NoisySGD(batch=7), 20, 7),
    "noisy_minibatch_sgd": (NoisyMinibatchSGD(sampler="full", window=10), 60, 7),
    "accelerated_minibatch_sgd": (AcceleratedMinibatchSGD(sampler="full"), 60, 7),
    "dp_mu2": (DPMu2(batch=7, noise_schedule="toeplitz"), 20, 7),
}
KINDS = {"pixels": (1.6, [4.0, 12.0]), "unit norm": (0.2, [12.0, 50.0])}  # clip, radii


def gaps(protocol, rounds, kind):
    """Accuracy of the best step in a fine grid minus that of the default step, at two privacy levels and two radii."""
    clip, radii = KINDS[kind]
    data = datasets.load("digits") if kind == "pixels" else mapped(datasets.load("digits"), ["unit_norm"], keep=False)
    problem = from_dataset(data, constraint=Ball(8.0), partition_table=np.arange(1420).reshape(20, 71))
    over = {"epsilon": [2.0, 8.0], "radius": radii, "step_scale": 2.0 ** np.arange(-2, 3.5, 0.5)}
    options = {"rounds": rounds, "seeds": 4, "metrics": ["test_accuracy"], "eval_every": rounds}
    found = sweep(replace(protocol, clip=clip), problem, Balanced(20, 10), over=over, **options).test_accuracy
    output = found.isel(iterate=0) if "iterate" in found.dims else found
    accuracy = output.isel(round=-1).mean("seed")
    return (accuracy.max("step_scale") - accuracy.sel(step_scale=1.0)).values.ravel()


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_the_default_step_is_within_two_points_of_the_best_of_a_fine_grid(name):
    protocol, rounds, least = FINE[name]
    found = np.concatenate([gaps(protocol, rounds, kind) for kind in KINDS])
    assert np.sum(found <= 0.02) >= least
    assert found.max() <= 0.06


# ---- inputs of a step

X = np.random.default_rng(3).normal(size=(40, 4))
X /= np.linalg.norm(X, axis=1, keepdims=True)


def small(**options):
    settings = {"feature_bound": 1.0, "constraint": Ball(2.0)} | options
    return linear_problem(X, (X[:, 0] > 0).astype(int), Logistic(), **settings)


POOL, ROWS = small(), np.arange(40).reshape(4, 10)
SHARES = small(partition_table=ROWS)


def step_of(protocol, problem=SHARES, participation=None):
    return float(ready(protocol, problem, participation or Full(4), rounds=10, metrics=[]).protocol.step_size)


BEFORE = [  # as they were before clipped runs had steps of their own
    (NoisySGD(mu=1.0), POOL, 0.565685424949238),
    (DPMu2(mu=1.0), POOL, 0.06666666666666667),
    (DPMu2(mu=1.0, noise_schedule="toeplitz"), POOL, 0.07633318186926268),
    (StaleMomentum(mu=np.inf), POOL, 0.1),
    (NoisyMinibatchSGD(epsilon=2.0, sampler="full"), SHARES, 1.0),
    (AcceleratedMinibatchSGD(epsilon=2.0, sampler="full"), SHARES, 0.22862842503412828),
    (TreeMomentum(mu=1.0), SHARES, 0.1),
    (ReducedTreeMomentum(mu=1.0), SHARES, 0.1),
    (UserSGD(epsilon=2.0, trust="server"), POOL, 0.5670885370623913),
    (UserAGD(epsilon=2.0, trust="server"), POOL, 0.1660000576263481),
]


@pytest.mark.parametrize(("protocol", "problem", "step"), BEFORE, ids=[one[0].name for one in BEFORE])
def test_without_a_clip_the_papers_steps_stay(protocol, problem, step):
    participation = OnePass(40, 4) if protocol.name.startswith("User") else Full(4)
    assert step_of(protocol, problem, participation) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize("method", [NoisyMinibatchSGD, AcceleratedMinibatchSGD])
def test_a_clip_that_clips_nothing_changes_no_step(method):
    plain, idle = (step_of(method(epsilon=2.0, sampler="full", clip=clip)) for clip in (None, 1.0))
    assert idle == plain
    assert step_of(method(epsilon=2.0, sampler="full", clip=0.9)) != plain


@pytest.mark.parametrize(
    ("method", "problem", "participation"),
    [
        (AcceleratedMinibatchSGD(epsilon=2.0, sampler="full", clip=0.5), SHARES, Full(4)),
        (UserAGD(epsilon=2.0, trust="server", clip=0.5), POOL, OnePass(40, 4)),
    ],
    ids=["minibatch", "users"],
)
def test_a_variance_that_is_given_decides_the_step_of_clipped_gradients_too(method, problem, participation):
    by_clip, little, much = (
        step_of(replace(method, variance=variance), problem, participation) for variance in (None, 1.0, 100.0)
    )
    assert much < little
    assert by_clip not in (little, much)


def test_the_plain_step_minds_the_distance_from_the_start_and_what_noise_may_cost():
    """L = 1/4 and d = 4: noise may go 2·√16 = 8 far, the set allows 2 or 50; whole batches count for half the clip."""
    for radius, far in ((2.0, 2.0), (50.0, 8.0)):
        problem = small(partition_table=ROWS, constraint=Ball(radius))
        pace = np.hypot(0.5 / radius, 0.3 * np.sqrt(4 / 4) / far)
        whole = np.hypot(0.25 / radius, 0.3 * np.sqrt(4 / 4) / far)
        last = NoisyMinibatchSGD(noise_std=0.3, sampler="full", clip=0.5, window=1)
        assert step_of(last, problem) == pytest.approx(1 / (whole * np.sqrt(10)))
        part = replace(last, sampler="subset", batch=9)
        assert step_of(part, problem) == pytest.approx(1 / (pace * np.sqrt(10)))
        assert step_of(NoisySGD(noise_std=0.3, clip=0.5), problem) == pytest.approx(1 / (pace * np.sqrt(10)))
        assert step_of(replace(last, window=None), problem) == pytest.approx(np.sqrt(3) / (whole * np.sqrt(10)))
        walk = 2 * (10 * pace**2 + (0.3 * 2 / far) ** 2)
        local = LocalSGD(noise_std=0.3, clip=0.5, batch=2, window=1)
        assert step_of(local, problem) == pytest.approx(walk**-0.5)
        accelerated = AcceleratedMinibatchSGD(noise_std=0.3, sampler="full", clip=0.5)
        assert step_of(accelerated, problem) == pytest.approx(1 / (whole * np.sqrt(2 * 10**3 / 105)))


def test_no_clipped_gradient_goes_farther_than_noise_may():
    problem = small(partition_table=ROWS, constraint=Ball(1000.0))
    for method in (NoisyMinibatchSGD(epsilon=np.inf, sampler="full", clip=0.5), NoisySGD(mu=np.inf, clip=0.5)):
        assert step_of(method, problem) == pytest.approx(8.0 / 0.5)


def test_noise_is_unlimited_but_by_the_distance_where_no_smoothness_is_known():
    problem = small()
    assert noise_reach(problem, 100.0) == 8.0
    assert noise_reach(problem, 100.0, times=2) == 16.0
    assert noise_reach(replace(problem, feature_bound=None), 100.0) == 100.0


@pytest.mark.parametrize("method", [NoisySGD, NoisyMinibatchSGD, DPMu2])
def test_units_of_the_labels_change_no_step_of_a_regression(method):
    """In a thousandth of the unit, parameters and gradients are a thousand times as large."""
    steps = []
    for unit in (1.0, 1000.0):
        loss = Squared(label_bound=2 * unit)
        table = {} if method is not NoisyMinibatchSGD else {"partition_table": ROWS}
        problem = linear_problem(X, unit * X[:, 0], loss, feature_bound=1.0, constraint=Ball(3 * unit), **table)
        own = {"sampler": "full"} if method is NoisyMinibatchSGD else {}
        steps.append(step_of(method(noise_std=0.3 * unit, clip=0.5 * unit, **own), problem))
    assert steps[1] == pytest.approx(steps[0])


def test_the_reach_is_the_distance_or_what_the_set_allows_from_the_start():
    assert small().reach == 2.0
    assert small(start=np.array([1.0, 0, 0, 0])).reach == 3.0
    assert small(distance=0.5).reach == 0.5
    assert small(constraint=WholeSpace()).reach == np.inf


def test_stale_momentums_noise_in_the_last_iterate_goes_as_far_as_it_may():
    start = ready(StaleMomentum(mu=1.0, clip=0.5), POOL, Full(4), rounds=10, metrics=[])
    protocol = start.protocol
    messages = np.asarray(protocol.message_noise.relative(start.plan)) * protocol.noise_std / 4
    assert protocol.step_size * np.sqrt(4 * np.sum(messages**2)) == pytest.approx(4.0)
    assert 2 * protocol.step_size == pytest.approx(step_of(DPMu2(mu=1.0, clip=0.5), POOL))  # in a small set


@pytest.mark.parametrize(("radius", "far"), [(2.0, 8.0), (11.0, 44.0), (20.0, 15.0), (1e6, 12.0)])
def test_gathered_noise_goes_twice_through_a_small_set_and_not_far_in_a_large_one(radius, far):
    """L = 1/4 and d = 4: a = 1.5·2·√16 = 12, and beyond that a·R/√(R² − a²)."""
    assert gathered_reach(small(constraint=Ball(radius))) == pytest.approx(far)


def test_gathered_noise_of_a_squared_loss_stays_within_the_set():
    problem = linear_problem(X, X[:, 0], Squared(), feature_bound=1.0, constraint=Ball(3.0))
    assert gathered_reach(problem) == noise_reach(problem, 6.0, times=2) == 6.0


def test_noise_left_in_what_acsa_reports_goes_as_far_as_it_may():
    """The bookkeeping behind `acsa.clipped_v`: w_ag of a run on noise alone."""
    rounds, v = 200, 1.0
    r = np.arange(1, rounds + 1.0)
    weight_of_w = 2 * r / (rounds * (rounds + 1))
    parts = r / (2 * v) * np.cumsum(weight_of_w[::-1])[::-1]
    assert np.linalg.norm(parts) == pytest.approx(np.sqrt(2 * rounds**3 / 105), rel=0.02)


def test_without_a_set_or_distance_a_step_must_be_set():
    nowhere = small(partition_table=ROWS, constraint=WholeSpace())
    for method in (NoisyMinibatchSGD(epsilon=2.0, sampler="full", clip=0.5), LocalSGD(epsilon=2.0, batch=2, clip=0.5)):
        with pytest.raises(Refusal, match="step_size must be set"):
            step_of(method, nowhere)
    with pytest.raises(Refusal, match="distance must be given"):
        step_of(AcceleratedMinibatchSGD(epsilon=2.0, sampler="full", clip=0.5), nowhere)
    assert step_of(TreeMomentum(mu=1.0, clip=0.5), nowhere) == pytest.approx(0.1)  # Theorem 6's
