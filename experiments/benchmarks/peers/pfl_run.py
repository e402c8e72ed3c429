"""The job in pfl: federated averaging with its Gaussian mechanism as local privacy, on a model in NumPy.

A model update is the step times a gradient, so the clipping bound is the step times √2·√785 and never acts. pfl's own
models need PyTorch, TensorFlow or MLX; this one has its gradient in closed form in NumPy.
"""

import job
import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.stats import MappedVectorStatistics

GRADIENT_BOUND = float(np.sqrt(2 * job.FEATURES)) * 1.001  # rounding must not make the clip act


class SoftmaxRegression(StatefulModel):
    """Weights [785, 10], from zero."""

    def __init__(self):
        self.weights = np.zeros((job.FEATURES, job.CLASSES), np.float32)

    def step(self, features: np.ndarray, labels: np.ndarray, step_size: float) -> None:
        """One step of SGD on one example."""
        self.weights -= np.float32(step_size) * job.gradient(self.weights, features[0], labels[0])

    def get_parameters(self, placeholders=None) -> MappedVectorStatistics:
        if placeholders is None:
            return MappedVectorStatistics({"weights": self.weights.copy()})
        placeholders["weights"][:] = self.weights
        return placeholders

    def set_parameters(self, w: MappedVectorStatistics) -> None:
        self.weights[:] = w["weights"]

    def get_model_difference(self, other_parameters: MappedVectorStatistics, clone: bool = False):
        return MappedVectorStatistics({"weights": self.weights - other_parameters["weights"]})

    def apply_model_update(self, statistics: MappedVectorStatistics):
        self.weights += statistics["weights"].astype(np.float32)
        return self, Metrics()

    def evaluate(self, dataset, name_formatting_fn, eval_params=None) -> Metrics:
        return Metrics()

    def save(self, dir_path: str) -> None:
        np.save(f"{dir_path}/weights.npy", self.weights)

    def load(self, dir_path: str) -> None:
        self.weights[:] = np.load(f"{dir_path}/weights.npy")


class OneStep(FederatedAveraging):
    """Federated averaging whose local training is the model's step."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        model.step(*user_dataset.raw_data, central_context.model_train_params.get("local_learning_rate"))
        return model.get_model_difference(initial_model_state), Metrics()


class Timed(TrainingProcessCallback):
    def __init__(self, clock: job.Clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.done(central_iteration + 1)
        return False, Metrics()


def federation(todo: job.Job) -> FederatedDataset:
    """The schedule's machines in turn, each with its next example."""
    machines, turns = iter(todo.participants.ravel()), iter(todo.turns.ravel())

    def next_example(machine: int) -> Dataset:
        k = next(turns)
        features, labels = todo.shares[machine]
        return Dataset((features[k : k + 1], labels[k : k + 1]), user_id=str(machine))

    return FederatedDataset(next_example, lambda: next(machines))


def main() -> None:
    todo = job.from_command_line(__doc__)
    rounds, noise_std, step_size, seed = todo.settings
    np.random.seed(seed)  # noqa: NPY002  (pfl draws all its seeds from here)
    mechanism = GaussianMechanism(step_size * GRADIENT_BOUND, noise_std / GRADIENT_BOUND)
    clock = job.Clock(rounds)
    data = federation(todo)
    model = OneStep().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=job.PER_ROUND,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism] if noise_std else []),
        SoftmaxRegression(),
        NNTrainHyperParams(local_learning_rate=step_size, local_num_epochs=1, local_batch_size=1),
        callbacks=[Timed(clock)],
        send_metrics_to_platform=False,
    )
    job.report("pfl", clock.seconds_per_round, model.weights)


if __name__ == "__main__":
    main()
