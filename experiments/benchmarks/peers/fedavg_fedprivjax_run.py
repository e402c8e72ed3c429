"""FedAvg in fedprivjax. A turn is a whole call: the plan, all rounds in one compiled program, and an evaluation."""

import fedavg_job as job
import numpy as np

from fedprivjax import MLP, FedAvg, Uniform, datasets, from_dataset, simulate
from fedprivjax.problem.problem import Problem


def main() -> None:
    given = job.arguments()
    problem = mnist_problem()
    method = FedAvg(local_epochs=1, batch=job.BATCH, step_size=job.STEP_SIZE)
    options = {"rounds": given.rounds, "metrics": ["test_accuracy"], "eval_every": given.rounds}

    def run():
        return simulate(method, problem, Uniform(job.MACHINES, job.PER_ROUND), **options)

    found = run()
    plan = found.plan
    first = weights(problem.start)
    np.savez(given.folder / job.JOB, *first, participants=plan.schedule.participants, samples=plan.samples)
    turns = job.Turns(given.rounds, given.rounds)
    turns.reached(0)
    for done in range(1, given.rounds + 1):
        found = run()
        turns.reached(done)
    job.report("fedprivjax", given.folder, weights(found.params))


def mnist_problem() -> Problem:
    """Return the problem, with the records on random machines."""
    (train, labels), (test, test_labels) = map(job.pictures, ("train", "t10k"))
    shape, bound = (-1, 28, 28), float(np.sqrt(job.mnist.PIXELS))
    arrays = train.reshape(shape), labels, test.reshape(shape), test_labels
    data = datasets.from_arrays(*arrays, feature_bound=bound, classes=job.CLASSES)
    rows = np.random.default_rng(0).permutation(len(labels)).reshape(job.MACHINES, job.RECORDS)
    return from_dataset(data, network=MLP(job.HIDDEN, activation="relu"), partition_table=rows)


def weights(params: dict) -> list[np.ndarray]:
    """Return kernel and bias of each layer in turn."""
    layers = [params[f"Dense_{k}"] for k in range(len(params))]
    return [np.asarray(layer[part]) for layer in layers for part in ("kernel", "bias")]


if __name__ == "__main__":
    main()
