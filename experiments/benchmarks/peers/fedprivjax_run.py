"""The job in fedprivjax: one compiled program for all rounds. A second call is timed, whole: plan, accounting, rounds,
and the final evaluation."""

import argparse
import time

import jax
import job

from fedprivjax import Given, NoisySGD, Softmax, linear_problem, simulate


def main() -> None:
    parser = job.arguments(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--noise-method", default="auto", help="materialised: draw every machine's noise by itself")
    given = parser.parse_args()
    todo = job.Job(given.rounds, given.noise_std, given.step_size, given.seed)
    loss = Softmax(job.CLASSES)
    problem = linear_problem(*todo.pool, loss, feature_bound=job.FEATURES**0.5, test=todo.test)
    protocol = NoisySGD(noise_std=todo.noise_std, step_size=todo.step_size)
    schedule = Given(job.MACHINES, todo.participants)
    settings = {"rounds": todo.rounds, "order": "stored", "record": ["test_accuracy"], "every": todo.rounds}

    def run(seed: int):
        found = simulate(protocol, problem, schedule, seed=seed, noise_method=given.noise_method, **settings)
        return jax.block_until_ready(found.params), found

    run(todo.seed + 1)
    began = time.perf_counter()
    _, found = run(todo.seed)
    seconds = time.perf_counter() - began
    job.report("fedprivjax", seconds / todo.rounds, float(found.metrics["test_accuracy"][-1]))


if __name__ == "__main__":
    main()
