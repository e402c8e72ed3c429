"""The loops that `fedprivjax bench` compares with do the same job."""

import runpy
from functools import partial
from importlib.util import find_spec

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import Ball, DPMu2, Seeds, Softmax, Uniform, calibrate, linear_problem, simulate, sweep
from fedprivjax.experiment import bundle
from fedprivjax.noise.chooser import relative_std

pytestmark = pytest.mark.optimised

MACHINES, ROUNDS, RADIUS, CLASSES = 6, 12, 0.5, 3
RNG = np.random.default_rng(5)
FEATURES, LABELS = RNG.normal(size=(60, 7)).astype(np.float32), RNG.integers(0, CLASSES, 60)
PROBLEM = linear_problem(FEATURES, LABELS, Softmax(CLASSES), constraint=Ball(RADIUS))
SOME = Uniform(MACHINES, 4)
LOOPS = ("numpy_loop", "torch_loop") if find_spec("torch") else ("numpy_loop",)


@pytest.fixture(scope="module", params=LOOPS)
def loop(request):
    return partial(
        runpy.run_path(str(bundle() / "benchmarks" / f"{request.param}.py"))["run"],
        FEATURES,
        LABELS,
        radius=RADIUS,
        machines=MACHINES,
        classes=CLASSES,
    )


def test_without_noise_the_loop_is_the_protocol(loop):
    run = simulate(DPMu2(mu=np.inf, step_size=0.003), PROBLEM, SOME, rounds=ROUNDS)
    schedule = run.plan.schedule
    found = loop(schedule.participants, run.plan.samples, np.ones((ROUNDS, 4)), noise_std=0.0, step_size=0.003, seed=0)
    np.testing.assert_allclose(found, run.params, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_with_noise_the_loop_has_the_protocols_law(loop):
    """Means and spreads of the training loss over seeds, with the same schedule and samples."""
    std, count = 0.4, 400
    protocol = DPMu2(noise_std=std, clip=1e6, step_size=0.05)  # a clip that never acts
    first = simulate(protocol, PROBLEM, SOME, rounds=ROUNDS)
    plan, step = first.plan, calibrate(protocol, PROBLEM, first.plan).step_size
    relative = relative_std("uniform", plan.schedule)

    def norm(problem, snapshot):
        return jnp.sum(jnp.square(snapshot.params))

    seeds = [Seeds(0, 0, seed) for seed in range(count)]
    ours = sweep(protocol, PROBLEM, SOME, seeds=seeds, rounds=ROUNDS, metrics=[norm], eval_every=ROUNDS)["norm"].values[
        :, -1
    ]

    def theirs(scale):
        settings = {"noise_std": scale * std, "step_size": step}
        given = plan.schedule.participants, plan.samples, relative
        return np.array([np.sum(loop(*given, seed=seed, **settings) ** 2) for seed in range(count)])

    same, weaker = theirs(1.0), theirs(2 / 3)
    error = np.sqrt((ours.var() + same.var()) / count)
    assert abs(ours.mean() - same.mean()) < 4 * error
    assert abs(ours.mean() - weaker.mean()) > 4 * error
