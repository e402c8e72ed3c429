"""Built-in metrics, and checks of the metrics that a run records."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_items, require_printable
from fedprivjax.engine.chunked_sums import mean_gradient, mean_loss, outcomes, summed, total
from fedprivjax.engine.client_metrics import CLIENT_METRICS
from fedprivjax.engine.metric import (
    Metric,
    Snapshot,
    always,
    as_losses,
    needs_classes,
    needs_test,
    never,
    not_negative,
    of_info,
    share,
)
from fedprivjax.engine.model_metrics import MODEL_METRICS
from fedprivjax.problem.devices import number_of
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Problem

MetricLike = str | Metric | Callable[[Problem, Snapshot], Any]

TRIAL = "trial"  # axis of resampled data, and option of datasets
AXES = ("seed", "round", "iterate", TRIAL)
RESERVED = (
    *("noise_std", "step_size", "realised_mu", "realised_epsilon", "diverged"),
    *("sent_messages", "sent_bits", "gradients_per_use"),
    *("rounds_taken", "gradients_per_record", "sent_bytes", "seconds"),
    *("idle_steps", "client_state_bytes"),
    *("params", "method", "predictor", "parameter"),
    *AXES,
)


def _gradient_norm(problem: Problem, snapshot: Snapshot):
    return Dense(mean_gradient(problem, snapshot.params, problem.pool)).norm()


def _excess_risk(problem: Problem, snapshot: Snapshot):
    if problem.excess is not None:
        return problem.excess(snapshot.params)
    examples = problem.pool if problem.test is None else problem.test
    return mean_loss(problem, snapshot.params, examples) - mean_loss(problem, problem.optimum, examples)


def _relative_mse(problem: Problem, snapshot: Snapshot):
    """Return the test MSE divided by the test MSE of the training labels' mean as constant prediction."""
    errors = 2 * mean_loss(problem, snapshot.params, problem.test)
    labels = summed(problem, lambda chunk, weights: total(chunk.label, weights), problem.pool)
    return errors / jnp.mean((problem.test.label - labels / number_of(problem.pool)) ** 2)


def _distance(problem: Problem, snapshot: Snapshot):
    return (Dense(snapshot.params) - Dense(problem.optimum)).norm()


def _noise_norm(problem: Problem, snapshot: Snapshot):
    return jnp.zeros(()) if snapshot.noise is None else jnp.linalg.norm(snapshot.noise)


def _noise_mean_square(problem: Problem, snapshot: Snapshot):
    return jnp.zeros(()) if snapshot.noise is None else jnp.mean(jnp.square(snapshot.noise))


def _needs_stored(problem: Problem) -> str | None:
    return None if problem.stored else "stored examples"


def _needs_optimum(problem: Problem) -> str | None:
    return "a known optimum" if problem.optimum is None else None


def _needs_excess(problem: Problem) -> str | None:
    if problem.excess is not None:
        return None
    known = problem.test is not None or problem.stored
    return _needs_optimum(problem) or (None if known else "a test set or an exact excess risk")


def _needs_regression(problem: Problem) -> str | None:
    if problem.test is None or not problem.stored:
        return "a test set and stored examples"
    return None if problem.model.squared else "the squared loss of a linear predictor"


def _excess_on_pool(problem: Problem) -> bool:
    return problem.excess is None and problem.test is None


def _labels(examples: Any) -> np.ndarray | None:
    """Return the labels of (features, labels) examples, shape [examples], or None for examples of another form."""
    labels = examples[1] if isinstance(examples, tuple) and len(examples) > 1 else None
    return None if labels is None or np.ndim(labels) != 1 else np.asarray(labels)


def _majority(problem: Problem, examples: Any) -> float | None:
    """Return the accuracy of predicting the pool's most frequent class, or None unless labels are stored classes."""
    known, judged = (_labels(each) for each in (problem.pool if problem.stored else None, examples))
    if known is None or judged is None:
        return None
    classes, counts = np.unique(known, return_counts=True)
    return float(np.mean(judged == classes[np.argmax(counts)]))


def _majority_error(problem: Problem) -> float | None:
    accuracy = _majority(problem, problem.test)
    return None if accuracy is None else 1 - accuracy


FRACTION: dict[str, Any] = {"limits": share, "unit": "%", "digits": 1}
_REGISTERED = (
    Metric(
        "test_accuracy",
        lambda problem, snapshot: outcomes(problem, snapshot, "test")[1],
        needs=lambda problem: needs_test(problem) or needs_classes(problem),
        constant=lambda problem: _majority(problem, problem.test),
        private=never,
        better="higher",
        **FRACTION,
        shown=("table", "against_epsilon", "against_costs"),
    ),
    Metric(
        "test_error",
        lambda problem, snapshot: 1 - outcomes(problem, snapshot, "test")[1],
        needs=lambda problem: needs_test(problem) or needs_classes(problem),
        constant=_majority_error,
        private=never,
        default=False,  # redundant with the accuracy
        **FRACTION,
        shown=("table", "against_epsilon"),
    ),
    Metric(
        "test_loss",
        lambda problem, snapshot: outcomes(problem, snapshot, "test")[0],
        needs=needs_test,
        private=never,
        limits=as_losses,
        shown=("table", "over_rounds", "against_costs"),
    ),
    Metric(
        "train_accuracy",
        lambda problem, snapshot: outcomes(problem, snapshot, "pool")[1],
        needs=lambda problem: _needs_stored(problem) or needs_classes(problem),
        constant=lambda problem: _majority(problem, problem.pool),
        private=always,
        better="higher",
        default=False,  # evaluated on the whole pool
        **FRACTION,
    ),
    Metric(
        "train_loss",
        lambda problem, snapshot: outcomes(problem, snapshot, "pool")[0],
        needs=_needs_stored,
        private=always,
        limits=as_losses,
        default=False,
    ),
    Metric(
        "relative_mse",
        _relative_mse,
        needs=_needs_regression,
        constant=lambda problem: 1.0,  # by definition
        private=always,
        limits=not_negative,
        default=False,
        of_mean=Metric("relative_rmse", np.sqrt, of="mean", private=always, shown=("table", "against_epsilon")),
    ),
    Metric(
        "excess_risk",
        _excess_risk,
        needs=_needs_excess,
        private=_excess_on_pool,
        digits=6,
        shown=("table", "against_epsilon", "over_rounds", "against_costs"),
    ),
    Metric("distance", _distance, needs=_needs_optimum, private=never, limits=not_negative),
    Metric(
        "gradient_norm",
        _gradient_norm,
        needs=_needs_stored,
        private=always,
        limits=not_negative,
        default=False,  # evaluated on the whole pool
        digits=5,
        shown=("table", "against_epsilon", "over_rounds", "against_costs"),
    ),
    Metric("noise_norm", _noise_norm, of="round", private=always, limits=not_negative),
    Metric(
        "noise_mean_square",
        _noise_mean_square,
        of="round",
        private=always,
        limits=not_negative,
        default=False,  # redundant with the norm
        of_mean=Metric("noise_rms", np.sqrt, of="mean", private=always, digits=5, shown=("table", "against_epsilon")),
    ),
    *CLIENT_METRICS,
    *MODEL_METRICS,
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _REGISTERED}
OF_MEAN: dict[str, Metric] = {m.of_mean.name: m.of_mean for m in _REGISTERED if m.of_mean is not None}


def known(metric: str | Metric) -> Metric:
    """Return the `Metric` with a given name.

    If `metric` is a `Metric` already, it is returned unchanged. If the package has no metric of this name, the result
    is a `Metric` with this name and default properties.

    >>> known("test_error").unit, known("relative_rmse").words, known("how_far").title
    ('%', 'relative rmse', 'how far')
    """
    if isinstance(metric, Metric):
        return metric
    return {**METRICS, **OF_MEAN}.get(metric) or Metric(metric, _lost)


def require_recorded(name: str, recorded: Iterable[str], what: str = "metric", others: Iterable[str] = ()) -> None:
    """Raise Refusal unless `name` is among the recorded metrics.

    Args:
        what: name of the value in the message.
        others: names of what can be drawn besides metrics, for suggestions.

    >>> require_recorded("test_loss", ["train_loss"])
    Traceback (most recent call last):
    fedprivjax.Refusal: metric 'test_loss' must be recorded, got train_loss. Choose one of these, or add it to what ...
    """
    names = list(recorded)
    if name in names:
        return
    require_choice(what, name, [*METRICS, *OF_MEAN, *names, *others])
    there = ", ".join(names) or "none"
    remedy = "Choose one of these, or add it to what runs record (evaluation.metrics in a file)"
    raise Refusal(f"{what} {name!r} must be recorded, got {there}. {remedy}")


def recorded_name(name: str) -> str:
    """Return the name of the recorded metric, given that name or the name of a function of its mean.

    >>> recorded_name("relative_rmse"), recorded_name("test_loss")
    ('relative_mse', 'test_loss')
    """
    sources = {m.of_mean.name: m.name for m in METRICS.values() if m.of_mean is not None}
    return sources.get(name, name)


def shown(place: str) -> list[str]:
    """Return the names of the metrics that an experiment displays at a place, see `Metric.shown`.

    >>> shown("over_rounds")
    ['test_loss', 'excess_risk', 'gradient_norm', 'consensus_distance']
    """
    return [name for name, metric in {**METRICS, **OF_MEAN}.items() if place in metric.shown]


def default_metrics(problem: Problem) -> tuple[str, ...]:
    """Return the default metrics: all that the problem defines, except redundant ones and those on the whole pool.

    >>> import numpy as np
    >>> from fedprivjax import Squared, linear_problem
    >>> default_metrics(linear_problem(np.eye(2), np.zeros(2), Squared(), optimum=np.zeros(2)))
    ('excess_risk', 'distance', 'noise_norm')
    """
    return tuple(name for name, metric in METRICS.items() if metric.default and metric.needs(problem) is None)


def check_metrics(problem: Problem, metrics: Sequence[MetricLike], info: Sequence[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics to record as objects.

    Args:
        metrics: names, `Metric` objects, or callables `(problem, Snapshot) -> scalar`, recorded under their names.
        info: names of the scalars that the protocol's rounds report, which are accepted too.

    Raises:
        Refusal: a name is unknown, reserved or used twice, or the problem does not meet a metric's requirement.
    """
    found = tuple(_as_metric(metric, info) for metric in require_list(metrics))
    names = [metric.name for metric in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise Refusal(f"metrics must have different names, got {twice[0]!r} twice")
    axes = [metric.axis for metric in found if metric.axis]
    taken = [name for name in (*names, *axes) if name in RESERVED] + [axis for axis in axes if axis in names]
    if taken:
        raise Refusal(f"metrics must not have the name {taken[0]!r}, which results use already")
    for metric in found:
        require_printable("name of a metric", metric.name, breaks=False)
        require_printable("label of a metric", metric.label, breaks=False)
        metric.require_arguments()
        missing = metric.needs(problem)
        if missing:
            end = "" if ", got" in missing else ", and the problem has none"
            raise Refusal(f"metric '{metric.name}' must have {missing}{end}")
    return found


def require_list(metrics: Any) -> Sequence[MetricLike]:
    """Return the metrics as a list. Raise Refusal for a single metric.

    >>> require_list("test_loss")
    Traceback (most recent call last):
    fedprivjax.Refusal: metrics must be a list, got 'test_loss'
    """
    if isinstance(metrics, str | Metric) or callable(metrics):
        one = _name(metrics) if isinstance(metrics, Metric) or callable(metrics) else metrics
        raise Refusal(f"metrics must be a list, got {one!r}")
    return require_items("metrics", metrics)


def non_private(problem: Problem, metrics: Sequence[Metric]) -> tuple[str, ...]:
    """Return the names of the metrics computed on private data, which the guarantee does not cover.

    A custom callable is marked "(not known)" after its name. A custom `Metric` can declare it with `private`.

    >>> import numpy as np
    >>> from fedprivjax import Squared, linear_problem
    >>> problem = linear_problem(np.eye(2), np.zeros(2), Squared(), optimum=np.zeros(2))
    >>> non_private(problem, check_metrics(problem, ["excess_risk", "distance", "train_loss"]))
    ('excess_risk', 'train_loss')
    >>> non_private(problem, [Metric("largest", lambda problem, snapshot: snapshot.params.max())])
    ('largest (not known)',)
    """
    answers = [(metric.name, metric.private(problem)) for metric in metrics]
    return tuple(name if private else f"{name} (not known)" for name, private in answers if private in (True, None))


def _as_metric(metric: MetricLike, info: Sequence[Any]) -> Metric:
    if isinstance(metric, Metric):
        if metric.of == "info":
            require_choice("metric", metric.name, info)
        return metric
    if callable(metric):
        return Metric(_name(metric), metric)
    if metric in info:
        return of_info(metric)
    require_choice("metric", metric, [*METRICS, *info])
    return METRICS[metric]


def _name(metric: Any) -> str:
    return metric.name if isinstance(metric, Metric) else getattr(metric, "__name__", "metric")


def _lost(problem: Problem, snapshot: Snapshot):
    raise NotImplementedError("a metric read from results has a name and no function")
