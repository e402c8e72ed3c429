"""Conversion of datasets to problems."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.checks.values import called, known_keywords, require_at_least
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.datasets.partition import by_machine, table_of
from fedprivjax.datasets.stream import Stream
from fedprivjax.problem.build import general_problem, linear_problem, procedural_problem
from fedprivjax.problem.checks import require_auto, require_labels, require_loss
from fedprivjax.problem.convolutions import Convolutions
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import Logistic, Softmax, Squared
from fedprivjax.problem.models import Clipping
from fedprivjax.problem.networks import CNN, MLP, NetworkCorrect, NetworkLoss, first_parameters, ready_network
from fedprivjax.problem.problem import Origin, Problem, Table
from fedprivjax.problem.raw_rows import RawRows
from fedprivjax.problem.sequences import LSTM, TokenLoss

CHANNELS = (1, 3)  # usual numbers of channels
SHOWN_CLASSES = 3  # in messages


@known_keywords
def from_dataset(
    dataset: Dataset | Stream,
    loss: LinearLoss | None = None,
    *,
    network: Any = None,
    start_seed: int = 0,
    convolutions: Convolutions = "auto",
    clipping: Clipping = "auto",
    constraint=None,
    partition_table=None,
    test_machine_of=None,
    start=None,
    lipschitz: float | Sequence[float] | None = None,
    distance: float | None = None,
    machine_weights: Sequence[float] | str | None = None,
) -> Problem:
    """Return the problem of training a linear predictor or a network on a `Dataset` or a `Stream`.

    Args:
        dataset: training and test data.
        loss: loss function. None is the dataset's default loss (`dataset.loss`). For a dataset without a default loss,
            None is the logistic loss (two classes), the softmax loss (more classes), or half the squared error
            (regression).
        network: flax module, linen or nnx, such as `MLP` or `CNN`, or None for a linear predictor. A network maps a
            batch of one example, [1, features], to scores, [1, classes]. Images have shape [1, height, width,
            channels], without the constant feature that may follow an image. Sequences are tokens [1, length]. If each
            token has a label, scores have shape [1, length, classes]. A network's Lipschitz constant is unknown unless
            `lipschitz` is given.
        start_seed: seed of the initial parameters of a linen module, if `start` is None.
        convolutions: computation of a network's convolutions, see `general_problem`.
        clipping: computation of a network's clipped gradients, see `general_problem`.
        constraint: set of allowed parameters. None is the whole space.
        partition_table: indices of the examples that each machine owns, int [machines, max_records], padded with −1.
            None is the dataset's partition (`dataset.machine_of`).
        test_machine_of: machine of each test example, int [tests]. None is `dataset.test_machine_of` if the partition
            is the dataset's own. With any other partition, None means that the machines of test examples are unknown.
        start: initial parameters. For a linear predictor, None is the point of the constraint set nearest to zero. For
            a linen module, None is a random sample of its initialisers. For an nnx module, None is the module's own
            parameters.
        lipschitz: declared bound on the gradient norm of one example's loss: one number, or one per machine. None
            derives the bound from the loss, except for a dataset with a constant `noise_lipschitz`. For such a dataset,
            None is this constant if a linear predictor has the dataset's default loss, or the Moreau envelope of the
            default loss. The constant is computed from private data, so noise calibrated with it is not private.
        distance: public bound on the distance from the start to the optimum, or None for the constraint set's diameter.
        machine_weights: weights of the machines' mean losses in the objective, positive, with sum 1. "sizes" is
            proportional to the machines' numbers of records, which are then public. None is equal weights.

    Raises:
        Refusal: if the loss does not fit the labels, or the partition, bounds or starting point are invalid.

    >>> from fedprivjax import Ball, datasets
    >>> from_dataset(datasets.load("digits"), constraint=Ball(8.0)).dimension
    650
    """
    if not isinstance(dataset, Dataset | Stream):
        known = 'as datasets.load("digits") and datasets.from_arrays(X, y, feature_bound=1.0, classes=2) make it'
        raise Refusal(f"dataset must be a Dataset or a Stream, {known}, got {called(dataset)}")
    require_at_least("start_seed", start_seed, 0)
    usual = _usual_loss(dataset)
    loss = usual if loss is None else loss
    require_loss(loss)
    _check_classes(dataset, loss)
    options = {"constraint": constraint, "start": start, "lipschitz": lipschitz, "distance": distance}
    if isinstance(dataset, Dataset):
        if partition_table is None and dataset.machine_of is not None:
            partition_table = own_table(dataset)
        options |= {"partition_table": partition_table, "machine_weights": machine_weights}
        options |= {"test_machine_of": test_owners(dataset, partition_table, test_machine_of)}
    elif partition_table is not None or test_machine_of is not None:
        name = "test_machine_of" if partition_table is None else "partition_table"
        raise Refusal(f"{name} must be None for a stream: every machine computes its own examples")
    elif machine_weights is not None:
        raise Refusal("machine_weights must be None for a stream: its machines hold no records")
    if network is not None:
        options |= {"convolutions": convolutions, "clipping": clipping}
        return described(_network_problem(dataset, loss, network, start_seed, **options), dataset)
    require_auto(convolutions=convolutions, clipping=clipping)
    if isinstance(dataset, Dataset) and dataset.padding is not None:
        raise Refusal("network must be given for sequences, got None. Set network = LSTM() (model = 'lstm' in a file)")
    options |= {"feature_bound": dataset.feature_bound, "test": _test(dataset)}
    if isinstance(dataset, Stream):
        return procedural_problem(dataset.generate, loss, seed=dataset.seed, **options)
    plain = loss.unsmoothed
    known = type(plain) is type(usual)  # the optimum and the Lipschitz constant are valid for one loss only
    if known and getattr(plain, "score_bound", None) is None:
        options |= {"optimum": dataset.optimum, "excess": dataset.population}
    problem = described(linear_problem(dataset.features, dataset.labels, loss, **options), dataset)
    if known and lipschitz is None and dataset.noise_lipschitz is not None:
        note = "as in the authors' code a statistic of private data: noise calibrated with it is not private"
        return replace(problem, own_lipschitz=dataset.noise_lipschitz, lipschitz_note=note)
    return problem


def own_table(dataset: Dataset, machines: int | None = None) -> np.ndarray:
    """Return the partition table of a dataset that is partitioned, [machines, max_records], with its origin.

    Args:
        machines: number of machines. None is the largest machine index plus one.
    """
    return table_of(by_machine(dataset.machine_of, machines), Origin(machines=dataset.machines_from))


def test_owners(dataset: Dataset, table: np.ndarray | None, given: Any) -> Any:
    """Return the machine of each test example: as given, or the dataset's own if the table has its machines."""
    if given is not None or dataset.test_machine_of is None or table is None or dataset.machine_of is None:
        return given
    rows = np.asarray(table)
    machine, _ = np.nonzero(rows >= 0)
    return dataset.test_machine_of if np.array_equal(dataset.machine_of[rows[rows >= 0]], machine) else None


def _test(dataset: Dataset | Stream, inputs: Callable[[np.ndarray], np.ndarray] = np.asarray):
    """Return the held-out examples, with features converted by `inputs`, or None if there are none."""
    return None if dataset.test_features is None else (inputs(dataset.test_features), dataset.test_labels)


def _check_classes(dataset: Dataset | Stream, loss: LinearLoss) -> None:
    """Raise Refusal for a loss of fewer classes than the data have. Warn if all training labels are one class."""
    if dataset.class_names and not loss.classifies:
        names = dataset.class_names
        known = ", ".join(names[:SHOWN_CLASSES]) + ", …" * (len(names) > SHOWN_CLASSES)
        wanted = f"loss must be one that classifies, for labels are {len(names)} classes ({known})"
        fitting = "'logistic', 'hinge' or 'softmax'" if len(names) == 2 else "'softmax'"
        remedy = f"Set loss = {fitting}, or classifies = True in a custom loss"
        raise Refusal(f"{wanted}, got {type(loss.unsmoothed).__name__}. {remedy}")
    if dataset.classes is None or not loss.classifies:
        return
    plain, most = type(loss.unsmoothed).__name__, loss.label_range()[1] + 1
    target = dataset.target or dataset.name
    if most < dataset.classes:
        wanted = f"loss must take the {dataset.classes} classes of {target!r}, got {plain}, which takes {most:g}"
        raise Refusal(f"{wanted}. Set loss = 'softmax' (Softmax({dataset.classes}))")
    if isinstance(dataset, Dataset) and dataset.labels.ndim == 1 and (dataset.labels == dataset.labels[0]).all():
        name = dataset.class_names[dataset.labels[0]] if dataset.class_names else str(dataset.labels[0])
        warn(f"all {len(dataset.labels)} training labels of {target!r} are class {name!r}: accuracy says nothing")


def described(problem: Problem, dataset: Dataset | Stream) -> Problem:
    """Return the problem with facts of its dataset: uncovered parts, clients' names, and preparation of raw rows."""
    table, names = problem.partition_table, dataset.machine_names
    if table is not None and len(names) == len(table.rows):
        table = Table(table.rows, names, table.origin)
    known = {"not_covered": dataset.not_covered, "raw_rows": dataset.raw_rows or _features_as_they_are(dataset)}
    return replace(problem, partition_table=table, **known)


def _features_as_they_are(dataset: Dataset | Stream) -> RawRows:
    """Return the preparation of rows that are the dataset's features. An image may come without the constant."""
    features = dataset.features if isinstance(dataset, Dataset) else dataset.test_features
    picture = dataset.picture if isinstance(dataset, Dataset) else None
    bias = picture is not None and features.shape[1] == prod(picture) + 1
    return RawRows(features.shape[1], bias, dataset.class_names)


def _network_problem(
    dataset: Dataset | Stream, loss: LinearLoss, network: Any, seed: int, *, start: Any, **options: Any
) -> Problem:
    """Return the problem of a network's scores under a loss, on a dataset."""
    padding, each = (dataset.padding, dataset.labels.ndim == 2) if isinstance(dataset, Dataset) else (None, False)
    if isinstance(network, LSTM):
        network = network.reading(padding, each=each)
    elif padding is not None and isinstance(network, MLP | CNN):
        raise Refusal(f"network must read tokens, got {type(network).__name__}. Set network = LSTM(), or a custom one")
    if each:
        loss = TokenLoss(loss)
    function = NetworkLoss(ready_network(network, loss), loss)
    options |= {"correct": NetworkCorrect(function), "test": _test(dataset, dataset.inputs)}
    if isinstance(dataset, Stream):
        start = first_parameters(function.network, dataset.test_features.shape[1:], seed, start)
        return procedural_problem(dataset.generate, function, seed=dataset.seed, start=start, **options)
    _require_channels_last(dataset.picture)
    require_labels(dataset.labels, loss)
    pool = dataset.inputs(dataset.features), dataset.labels
    start = first_parameters(function.network, pool[0].shape[1:], seed, start, pool[0].dtype)
    return general_problem(function, pool, start, **options)


def _require_channels_last(picture: tuple[int, int, int] | None) -> None:
    if picture is not None and picture[0] in CHANNELS and picture[2] > max(CHANNELS) + 1:
        raise Refusal(
            f"images must be [examples, height, width, channels] for a network, got {picture} each, "
            f"which looks like channels first. Use np.moveaxis(features, 1, -1)"
        )


def _usual_loss(dataset: Dataset | Stream) -> LinearLoss:
    if dataset.loss is not None:
        return dataset.loss
    if dataset.classes is None:
        return Squared(dataset.label_bound)
    return Logistic() if dataset.classes == 2 else Softmax(dataset.classes)
