"""The job in fedprivjax: all rounds in one compiled program. Its second run is timed, and the whole of it: accounting,
rounds, and a final evaluation."""

import time

import jax
import job
import numpy as np

from fedprivjax import Given, NoisySGD, Softmax, linear_problem, simulate
from fedprivjax.noise.chooser import METHODS


def main() -> None:
    parser = job.arguments(__doc__)
    parser.add_argument("--noise-method", choices=METHODS, default="auto")
    given = vars(parser.parse_args())
    method = given.pop("noise_method")
    todo = job.Job(job.Settings(**given))
    rounds, noise_std, step_size, seed = todo.settings
    problem = linear_problem(
        *todo.pool, Softmax(job.CLASSES), feature_bound=job.FEATURES**0.5, test=job.mnist.load("t10k")
    )

    def run(seed: int):
        found = simulate(
            NoisySGD(noise_std=noise_std, step_size=step_size),
            problem,
            Given(job.MACHINES, todo.participants),
            rounds=rounds,
            seed=seed,
            metrics=["test_accuracy"],
            eval_every=rounds,
            order="stored",
            noise_method=method,
        )
        return jax.block_until_ready(found.params)

    run(seed + 1)
    began = time.perf_counter()
    weights = run(seed)
    job.report("fedprivjax", (time.perf_counter() - began) / rounds, np.asarray(weights).T)


if __name__ == "__main__":
    main()
