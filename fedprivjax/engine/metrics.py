"""What a run records: scalars of the reported point and of the round's noise."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.problem.losses import Squared
from fedprivjax.problem.problem import Problem


class Snapshot(NamedTuple):
    """What a metric may look at: the reported parameters, and the noise in the round's aggregate, [d] or None."""

    params: Any
    noise: Any = None


Metric = Callable[[Problem, Snapshot], Any]


def mean_loss(problem: Problem, params, examples):
    """Mean loss of many examples."""
    return jnp.mean(jax.vmap(problem.model.value, in_axes=(None, 0))(params, examples))


def _accuracy(problem: Problem, params, examples):
    hits: Any = jax.vmap(problem.model.correct, in_axes=(None, 0))(params, examples)
    return jnp.mean(hits)


def _excess_risk(problem: Problem, snapshot: Snapshot):
    if problem.excess is not None:
        return problem.excess(snapshot.params)
    examples = problem.pool if problem.test is None else problem.test
    return mean_loss(problem, snapshot.params, examples) - mean_loss(problem, problem.optimum, examples)


def _relative_mse(problem: Problem, snapshot: Snapshot):
    """Mean squared error on the test set over that of always predicting the training labels' mean."""
    errors = 2 * mean_loss(problem, snapshot.params, problem.test)
    return errors / jnp.mean((problem.test.label - jnp.mean(problem.pool.label)) ** 2)


def _distance(problem: Problem, snapshot: Snapshot):
    apart = jax.tree.map(jnp.subtract, snapshot.params, problem.optimum)
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(apart)))


def _noise_norm(problem: Problem, snapshot: Snapshot):
    return jnp.zeros(()) if snapshot.noise is None else jnp.linalg.norm(snapshot.noise)


METRICS: dict[str, Metric] = {
    "test_loss": lambda problem, snapshot: mean_loss(problem, snapshot.params, problem.test),
    "test_accuracy": lambda problem, snapshot: _accuracy(problem, snapshot.params, problem.test),
    "test_error": lambda problem, snapshot: 1 - _accuracy(problem, snapshot.params, problem.test),
    "train_loss": lambda problem, snapshot: mean_loss(problem, snapshot.params, problem.pool),
    "train_accuracy": lambda problem, snapshot: _accuracy(problem, snapshot.params, problem.pool),
    "excess_risk": _excess_risk,
    "relative_mse": _relative_mse,
    "distance": _distance,
    "noise_norm": _noise_norm,
}

# on private data, so outside the guarantee
NON_PRIVATE = ("train_loss", "train_accuracy", "relative_mse", "noise_norm")
NOT_BY_DEFAULT = ("train_loss", "train_accuracy", "test_error", "relative_mse")
RESERVED = ("noise_std", "step_size", "realised_mu", "realised_epsilon", "diverged", "seed", "round", "trial")
OF_TRIALS = {"relative_rmse": "relative_mse"}  # the root of a trial's mean, by what it is the root of
PER_CENT = ("accuracy", "test_error")  # shown in per cent, also of other iterates
OF_PARAMETERS = tuple(name for name in METRICS if name != "noise_norm")


def default_metrics(problem: Problem) -> tuple[str, ...]:
    """Every metric that the problem defines, but for those that another says, or that look at the whole pool.

    >>> import numpy as np
    >>> from fedprivjax import Squared, linear_problem
    >>> default_metrics(linear_problem(np.eye(2), np.zeros(2), Squared(), optimum=np.zeros(2)))
    ('excess_risk', 'distance', 'noise_norm')
    """
    return tuple(n for n in METRICS if n not in NOT_BY_DEFAULT and _missing(problem, n) is None)


def check_metrics(problem: Problem, record) -> tuple[str | Metric, ...]:
    """The metrics as a tuple, refused where the problem lacks what they need; callables pass as they are."""
    if isinstance(record, str) or callable(record):
        raise Refusal(f"record must be a list of metrics, got {metric_name(record)!r}")
    record = tuple(record)
    names = [metric_name(metric) for metric in record]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Refusal(f"record must have metrics of different names, got {twice[0]!r} twice")
    taken = [name for name in names if name in RESERVED]
    if taken:
        raise Refusal(f"record must not have a metric named {taken[0]!r}: results have that already")
    for name in record:
        if callable(name):
            continue
        require_choice("metric", name, METRICS)
        missing = _missing(problem, name)
        if missing:
            raise Refusal(f"metric '{name}' must have {missing}, and the problem has none")
    return record


def non_private(problem: Problem, record) -> tuple[str, ...]:
    """The recorded names of metrics that are computed on private data, so outside the guarantee.

    What a metric of one's own looks at is not known, so none is listed.

    >>> import numpy as np
    >>> from fedprivjax import Squared, linear_problem
    >>> problem = linear_problem(np.eye(2), np.zeros(2), Squared(), optimum=np.zeros(2))
    >>> non_private(problem, ["excess_risk", "distance", "train_loss"])
    ('excess_risk', 'train_loss')
    """
    on_pool = problem.excess is None and problem.test is None
    private = (*NON_PRIVATE, "excess_risk") if on_pool else NON_PRIVATE
    return tuple(metric for metric in record if isinstance(metric, str) and metric in private)


def metric_name(metric: str | Metric) -> str:
    """The name a metric is recorded under."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")


def _missing(problem: Problem, name: str) -> str | None:
    if name.startswith("train") and not problem.stored:
        return "stored examples"
    if name.startswith("test") and problem.test is None:
        return "a test set"
    if name.endswith(("accuracy", "test_error")) and not _classifies(problem):
        return "a loss that classifies"
    if name == "excess_risk" and problem.excess is None:
        if problem.optimum is None:
            return "a known optimum"
        if problem.test is None and not problem.stored:
            return "a test set or an exact excess risk"
    if name == "relative_mse":
        if problem.test is None or not problem.stored:
            return "a test set and stored examples"
        if not isinstance(getattr(problem.model, "loss", None), Squared):
            return "the squared loss of a linear predictor"
    if name == "distance" and problem.optimum is None:
        return "a known optimum"
    return None


def _classifies(problem: Problem) -> bool:
    example = problem.take(0, 0)
    return problem.model.correct(problem.start, example) is not None
