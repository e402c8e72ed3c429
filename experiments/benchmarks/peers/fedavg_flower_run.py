"""FedAvg in Flower: its simulation runtime with Ray, clients in PyTorch, one actor per core."""

from functools import partial
from pathlib import Path

import fedavg_job as job
import numpy as np
import torch
from fedavg_torch import Network, records
from flower_run import Scheduled, client_app, machines_of, run
from flwr.app import ArrayRecord, Context
from flwr.server import ServerApp
from flwr.serverapp import Grid


def local_epoch(folder: Path, t: int, machine: int, weights: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Return a machine's weights after its pass of round t (from 1), and its number of records."""
    todo = job.of_this_process(folder)
    slot = int(np.flatnonzero(todo.participants[t - 1] == machine)[0])
    pictures, labels = records(todo, t - 1, slot)
    network = Network(weights)
    optimizer = torch.optim.SGD(network.parameters(), lr=job.STEP_SIZE)
    for batch in zip(pictures.split(job.BATCH), labels.split(job.BATCH), strict=True):
        optimizer.zero_grad()
        network.loss(*batch).backward()
        optimizer.step()
    return network.weights(), len(labels)


def server_app(todo: job.Job) -> ServerApp:
    """Train for the job's rounds, in turns, and report."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        turns = job.Turns(todo.rounds)
        strategy = Scheduled(todo.participants, machines_of(grid))
        start = ArrayRecord(todo.start)
        found = strategy.start(grid, start, todo.rounds, evaluate_fn=lambda t, _: turns.reached(t))
        job.report("flwr", todo.folder, found.arrays.to_numpy_ndarrays())

    return app


if __name__ == "__main__":
    todo = job.from_command_line()
    run(server_app(todo), client_app(partial(local_epoch, todo.folder)))
