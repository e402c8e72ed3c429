"""FedAvg of a convolutional network in fedprivjax. A turn is a call of the compiled program of one round."""

import sys
from pathlib import Path

import convolutions_job as job
import jax
import numpy as np

from fedprivjax import FedAvg, Full, ready
from fedprivjax.bench.fedavg import random_problem
from fedprivjax.bench.timing import compiled_run

sys.path.append(str(Path(__file__).parents[1] / "targets"))
from convolutions import Network


def main() -> None:
    given = job.arguments()
    network = Network(job.CHANNELS, job.HIDDEN)
    problem = random_problem(given.machines, given.steps * job.BATCH, network)
    method = FedAvg(local_epochs=1, batch=job.BATCH, step_size=job.STEP_SIZE)
    start = ready(method, problem, Full(given.machines), rounds=1, metrics=(), eval_every=1)
    pictures, labels = (np.asarray(leaf)[start.plan.samples[0]] for leaf in problem.pool)
    job.save(given, "job", weights(problem.start), pictures=pictures, labels=labels)
    run = compiled_run(start)
    turns = job.turns(given)
    turns.reached(0)
    for done in range(1, given.rounds + 1):
        end, *_ = jax.block_until_ready(run())
        turns.reached(done)
    job.report(given, "fedprivjax", weights(end))


def weights(params: dict) -> list[np.ndarray]:
    """Return kernel and bias of each layer in turn."""
    return [np.asarray(params[name][part]) for name in job.LAYERS for part in ("kernel", "bias")]


if __name__ == "__main__":
    main()
