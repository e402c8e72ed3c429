"""FedAvg in pfl: its federated averaging and its PyTorch model. A round's records come in the order of the batches."""

import fedavg_job as job
import numpy as np
import torch
from fedavg_torch import Network, records
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Measured(Network):
    """The network with the metrics that pfl asks for before the first round."""

    @torch.no_grad()
    def metrics(self, pictures: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(len(labels) * float(self.loss(pictures, labels)), len(labels))}


class InTurns(TrainingProcessCallback):
    """Waits for the library's turn before each round."""

    def __init__(self, turns: job.Turns):
        self.turns = turns

    def on_train_begin(self, *, model):
        self.turns.reached(0)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.turns.reached(central_iteration + 1)
        return False, Metrics()


def federation(todo: job.Job) -> FederatedDataset:
    """Return the schedule's participants in turn, each with its records of the round."""
    slots = iter(np.ndindex(todo.participants.shape))

    def of_slot(slot: tuple[int, int]) -> Dataset:
        return Dataset(records(todo, *slot), user_id=str(todo.participants[slot]))

    return FederatedDataset(of_slot, lambda: next(slots))


def main() -> None:
    todo = job.from_command_line()
    network = Measured(todo.start)
    data = federation(todo)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=todo.rounds,
            evaluation_frequency=todo.rounds,
            train_cohort_size=job.PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_learning_rate=job.STEP_SIZE, local_num_epochs=1, local_batch_size=job.BATCH),
        callbacks=[InTurns(job.Turns(todo.rounds))],
        send_metrics_to_platform=False,
    )
    job.report("pfl", todo.folder, network.weights())


if __name__ == "__main__":
    main()
