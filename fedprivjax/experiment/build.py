"""Settings into what runs: problems, participation and protocols."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_positive
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.experiment.settings import (
    STRUCTURAL,
    TRIAL,
    Experiment,
    ParticipationSettings,
    ProblemSettings,
    ProtocolSettings,
)
from fedprivjax.plan.participation import Balanced, Full, Given, Participation, Uniform, Varying
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.problem.constraints import Ball, WholeSpace
from fedprivjax.problem.losses import Absolute, Hinge, Huber, LinearLoss, Logistic, Pinball, Softmax, Squared
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.smoothing import Moreau
from fedprivjax.protocols import PROTOCOLS

LOSSES = {
    "softmax": "cross-entropy of a softmax over classes, linear predictor",
    "logistic": "binary cross-entropy, labels 0 and 1, linear predictor",
    "squared": "half the squared error, linear predictor",
    "hinge": "hinge loss, labels 0 and 1, linear predictor",
    "absolute": "absolute error, linear predictor",
    "pinball": "quantile regression at `quantile`, linear predictor",
    "huber": "squared within `huber_width` and linear beyond, linear predictor",
}
LOSS_OF = {"quantile": "pinball", "huber_width": "huber", "score_bound": "logistic"}  # whose setting it is
VARYING = {"binomial": ("rate",), "between": ("least", "most"), "varying": ("sizes",)}  # kind: its settings
MOMENTS = "moments"


def make_problem(settings: ProblemSettings, machines: int, trial: int | None = None) -> Problem:
    """The problem of an experiment; a partition, where asked for, deals the samples over `machines`."""
    options = settings.options if trial is None else {**settings.options, TRIAL: trial}
    data = datasets.load(settings.dataset, **options)
    table = None
    if settings.partition is not None and isinstance(data, datasets.Stream):
        raise Refusal(f"problem.partition must be left out: each machine of {data.name!r} computes its own examples")
    if settings.partition is not None:
        options = dict(settings.partition)
        seed = options.pop("seed", 0)
        require_at_least("problem.partition.seed", seed, 0)
        rng = np.random.default_rng(seed)
        table = datasets.table(datasets.partition(data.labels, machines, rng=rng, **options))[0]
    elif data.machine_of is not None:
        table = datasets.table(datasets.by_machine(data.machine_of, machines))[0]
    constraint = WholeSpace() if settings.radius is None else Ball(settings.radius)
    return from_dataset(data, _loss(settings, data), constraint=constraint, table=table)


def make_participation(settings: ParticipationSettings, shape: Mapping[str, int]) -> tuple[Participation, int | None]:
    """Participation and rounds (None: as many as the samples allow) at one combination of the swept integers."""
    chosen = {**settings.model_dump(include=set(STRUCTURAL)), **shape}
    machines, per_round, rounds = chosen["machines"], chosen["per_round"], chosen["rounds"]
    if machines is None:
        raise Refusal("participation.machines must be given, or swept")
    if rounds is not None:
        require_at_least("rounds", rounds, 1)
    _check_participation(settings)
    if settings.kind == "given":
        if settings.schedule is None:
            raise Refusal("participation.schedule must be given for kind 'given'")
        given = Given(machines, settings.schedule)
        if per_round not in (None, given.per_round):
            raise Refusal(f"per_round must be {given.per_round}, as in participation.schedule, got {per_round}")
        return given, len(settings.schedule) if rounds is None else rounds
    if settings.kind == "full":
        if per_round not in (None, machines):
            raise Refusal(f"per_round must be machines ({machines}) at full participation, got {per_round}")
        return Full(machines), rounds
    if settings.kind in VARYING:
        return _varying(settings, machines, per_round), rounds
    if per_round is None:
        raise Refusal("participation.per_round must be given, or swept")
    if settings.kind == "balanced":
        return Balanced(machines, per_round, settings.reshuffle), rounds
    return Uniform(machines, per_round), rounds


def _check_participation(settings: ParticipationSettings) -> None:
    """Refuse settings of another kind."""
    for key in (key for kind, keys in VARYING.items() if kind != settings.kind for key in keys):
        if getattr(settings, key) is not None:
            raise Refusal(f"participation.{key} must go with another kind, got kind '{settings.kind}'")
    if settings.schedule is not None and settings.kind != "given":
        raise Refusal(f"participation.schedule must go with kind 'given', got kind '{settings.kind}'")
    if not settings.reshuffle and settings.kind != "balanced":
        raise Refusal(f"participation.reshuffle must go with kind 'balanced', got kind '{settings.kind}'")


def _varying(settings: ParticipationSettings, machines: int, per_round: int | None) -> Varying:
    if per_round is not None:
        raise Refusal(f"per_round must be left out for kind '{settings.kind}', got {per_round}")
    given = [getattr(settings, key) for key in VARYING[settings.kind]]
    for key, value in zip(VARYING[settings.kind], given, strict=True):
        if value is None:
            raise Refusal(f"participation.{key} must be given for kind '{settings.kind}'")
    make = {"binomial": Varying.binomial, "between": Varying.between, "varying": Varying}[settings.kind]
    return make(machines, *given)


def make_protocol(settings: ProtocolSettings) -> Any:
    """The protocol object of one `[[protocol]]` entry."""
    return PROTOCOLS[settings.name][0](**settings.settings)


def by_batch(
    experiment: Experiment, settings: ProtocolSettings, problem: Problem, rounds: int | None
) -> list[tuple[ProtocolSettings, dict[str, float]]]:
    """A protocol's settings, with the point of the sweep where they hold: one for each ε with the batch "moments"."""
    batch = settings.settings.get("batch")
    if not isinstance(batch, str):
        return [(settings, {})]
    require_choice("batch", batch, (MOMENTS,))
    over = experiment.sweep.over.get("epsilon")
    if over is None or "epsilon" in settings.settings or rounds is None or problem.table is None:
        raise Refusal(f"batch {MOMENTS!r} must go with a swept epsilon, given rounds and machines of their own records")
    fewest = int(problem.table.sizes.min())
    found = []
    for epsilon in over:
        own = {"epsilon": epsilon, "batch": moments_batch(records=fewest, rounds=rounds, epsilon=epsilon)}
        found.append((settings.model_copy(update={"settings": settings.settings | own}), {"epsilon": epsilon}))
    return found


def _loss(settings: ProblemSettings, data: datasets.Dataset | datasets.Stream) -> LinearLoss | None:
    given = "none" if settings.loss is None else f"loss {settings.loss!r}"
    for key, owner in LOSS_OF.items():
        if getattr(settings, key) is not None and settings.loss != owner:
            raise Refusal(f"problem.{key} must go with loss {owner!r}, got {given}")
    if settings.loss is None:
        if settings.smoothing is not None:
            raise Refusal("problem.smoothing must go with a loss, got none")
        return None
    loss = _plain_loss(settings, data)
    require_positive("problem.smoothing", settings.smoothing, optional=True)
    return loss if settings.smoothing is None else Moreau(loss, settings.smoothing)


def _plain_loss(settings: ProblemSettings, data: datasets.Dataset | datasets.Stream) -> LinearLoss:
    match settings.loss:
        case "softmax":
            return Softmax(data.classes or 0)
        case "squared":
            return Squared(data.label_bound)
        case "logistic":
            return Logistic(settings.score_bound)
        case "pinball":
            return Pinball(_needed(settings, "quantile"))
        case "huber":
            return Huber(_needed(settings, "huber_width"))
    return Hinge() if settings.loss == "hinge" else Absolute()


def _needed(settings: ProblemSettings, key: str) -> float:
    value = getattr(settings, key)
    if value is None:
        raise Refusal(f"problem.{key} must be given for loss {settings.loss!r}")
    return value
