"""The job in Flower: its simulation runtime with Ray, a FedAvg strategy that follows the schedule, one actor a core."""

import logging
import os
import time
from collections.abc import Callable
from functools import partial

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import job
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server import ServerApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


class Scheduled(FedAvg):
    """Federated averaging over the schedule's participants.

    Args:
        nodes: of each machine.
    """

    def __init__(self, participants: np.ndarray, nodes: dict[int, int]):
        super().__init__(fraction_evaluate=0.0)
        self.participants, self.nodes = participants, nodes

    def configure_train(self, server_round, arrays, config, grid):
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [
            Message(content=content, message_type=MessageType.TRAIN, dst_node_id=self.nodes[int(machine)])
            for machine in self.participants[server_round - 1]
        ]


Step = Callable[[int, int, list[np.ndarray]], tuple[list[np.ndarray], int]]


def client_app(step: Step) -> ClientApp:
    """Return the program of all clients, which also tells which machine a client is.

    Args:
        step: a machine's weights after round t (from 1) and its number of examples, of (t, machine, the first weights).
    """
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        answer = MetricRecord({"machine": int(context.node_config["partition-id"])})
        return Message(content=RecordDict({"who": answer}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        t = int(message.content["config"]["server-round"])
        start = message.content["arrays"].to_numpy_ndarrays()
        end, examples = step(t, int(context.node_config["partition-id"]), start)
        content = {"arrays": ArrayRecord(end), "metrics": MetricRecord({"num-examples": examples})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def noisy_step(settings: job.Settings, t: int, machine: int, weights: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Return the weights after a machine's noisy step on one example."""
    return [job.noisy_step(settings, weights[0], t, machine)], 1


def server_app(todo: job.Job) -> ServerApp:
    """Trains for the job's rounds and reports."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        rounds = todo.settings.rounds
        clock = job.Clock(rounds)
        start = ArrayRecord([np.zeros((job.FEATURES, job.CLASSES), np.float32)])
        strategy = Scheduled(todo.participants, machines_of(grid))
        found = strategy.start(grid, start, rounds, evaluate_fn=lambda t, _: clock.done(t))
        job.report("flwr", clock.seconds_per_round, found.arrays.to_numpy_ndarrays()[0])

    return app


def machines_of(grid: Grid) -> dict[int, int]:
    """The node that plays each machine, asked of all of them once they are there."""
    while len(nodes := list(grid.get_node_ids())) < job.MACHINES:
        time.sleep(0.1)
    asked = [Message(RecordDict({"who": ConfigRecord()}), node, MessageType.QUERY) for node in nodes]
    answers = grid.send_and_receive(asked)
    return {int(answer.content["who"]["machine"]): answer.metadata.src_node_id for answer in answers}


def run(server: ServerApp, client: ClientApp) -> None:
    """Run the simulation with one actor per core."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=job.MACHINES, backend_config=resources)


if __name__ == "__main__":
    todo = job.from_command_line(__doc__)
    run(server_app(todo), client_app(partial(noisy_step, todo.settings)))
