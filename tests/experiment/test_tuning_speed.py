"""Tuning all four methods of Lowy & Razaviyayn's figure 3 as sweeps, against the authors' loop in NumPy."""

from time import perf_counter

import numpy as np
import pytest
from oracles import lowy_razaviyayn as oracle

from fedprivjax import Logistic, Uniform, linear_problem
from fedprivjax.protocols.released import ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep

pytestmark = pytest.mark.timed

MACHINES, RECORDS, FEATURES, BATCH, ROUNDS, REPETITIONS = 25, 1238, 50, 443, 35, 3
EPSILONS = [0.75, 1.5, 3, 6, 12, 18]
STEPS = np.exp(np.linspace(-6, 0, 10)).tolist()
TIMES = 10


def sweeps(problem):
    """Return the four prepared sweeps of a trial."""
    common = {
        "batch": BATCH,
        "window": 8,
        "sampler": "replacement",
        "noise_rule": "paper_moments",
        "acknowledged": True,
    }
    for make in (lambda **kw: ReleasedMinibatchSGD(aggregate="sum", **kw), ReleasedLocalSGD):
        for noisy in (False, True):
            protocol = make(**common) if noisy else make(**common, epsilon=np.inf)
            over = {"epsilon": EPSILONS} if noisy else {}
            yield ready_sweep(
                protocol,
                problem,
                Uniform(MACHINES, MACHINES),
                over={**over, "step_size": STEPS},
                seeds=REPETITIONS,
                rounds=ROUNDS,
                eval_every=ROUNDS,
                metrics=["train_loss", "test_error"],
                resample=["step_size"],
                delta=RECORDS**-2.0,
            )


@pytest.mark.slow
def test_a_run_of_the_sweep_is_ten_times_faster_than_the_loop():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(MACHINES, RECORDS, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=FEATURES) > 0).astype(np.int32)
    test = x[:, :310].reshape(-1, FEATURES), y[:, :310].ravel()
    problem = linear_problem(x, y, Logistic(score_bound=15.0), test=test, feature_bound=28.0)
    ours = theirs = runs = 0.0
    loops = [oracle.minibatch_sgd, oracle.minibatch_sgd, oracle.local_sgd, oracle.local_sgd]
    for prepared, loop, std in zip(sweeps(problem), loops, [0.0, 0.1, 0.0, 2.0], strict=True):
        count = prepared.runs[0] * prepared.runs[1]
        execute(prepared)  # compiled
        start = perf_counter()
        execute(prepared)
        ours += perf_counter() - start
        start = perf_counter()
        loop(
            x.astype(float),
            y.astype(float),
            oracle.logistic_gradient,
            batch=BATCH,
            rounds=ROUNDS,
            per_round=MACHINES,
            step=1e-3,
            noise_std=std,
            window=8,
            rng=rng,
        )
        theirs += count * (perf_counter() - start)
        runs += count
    print(f"{1000 * ours / runs:.3g} ms a run, the loop {theirs / ours:.3g} times that")
    assert runs == 2 * (1 + len(EPSILONS)) * len(STEPS) * REPETITIONS
    assert theirs > TIMES * ours
