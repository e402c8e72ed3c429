"""A metric as one object, with its function, requirements, privacy and display, and metrics at a run's iterates."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isnan
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.seen import seen_of
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import by_shapes
from fedprivjax.problem.random_keys import random_key

OUTPUT = "output"


class Snapshot(NamedTuple):
    """Values of a run at one evaluation, from which a metric is computed.

    Attributes:
        params: parameters at which the metric is evaluated.
        noise: noise in the server's aggregate of the last round; shape [d] for d parameters. None if there is no noise.
        info: scalars that the protocol reports in each round, by name. Each value is a mean over the rounds since the
            last evaluation.
        shared: values that several metrics use, by name, such as the test scores. The first metric that needs such a
            value computes it and stores it here. None shares no values.
        personal: function from a machine's index to the parameters of its personal model. None if machines have no
            personal models.
        models: models of all machines in a gossip method, leaves [machines, ...]. None for methods with a server.
    """

    params: Any
    noise: Any = None
    info: Any = None
    shared: dict[str, Any] | None = None
    personal: Callable[[Any], Any] | None = None
    models: Any = None


def no_needs(problem: Problem) -> None:
    """Return None: the metric can be computed for every problem.

    This function is the default of the field `needs` of a `Metric`.
    """


def no_constant(problem: Problem) -> None:
    """Return None: the metric is not compared with its value for a constant prediction.

    This function is the default of the field `constant` of a `Metric`.
    """


def needs_test(problem: Problem) -> str | None:
    """Return the requirement of a test set, or None if the problem has one."""
    return "a test set" if problem.test is None else None


def needs_classes(problem: Problem) -> str | None:
    """Return the requirement of an accuracy that the problem does not meet, or None."""
    return "a loss that classifies" if _correct(replace(problem.traced, test=None, excess=None)) is None else None


@by_shapes
def _correct(problem: Problem) -> Any:
    return jax.eval_shape(lambda problem: problem.model.correct(problem.start, problem.take(0, 0)), problem)


def unknown(problem: Problem) -> None:
    """Return None: it is not known whether the metric is computed from private data.

    This function is the default of the field `private` of a `Metric`.
    """


def never(problem: Problem) -> bool:
    """Return False, for the field `private` of a `Metric` that never uses private data."""
    return False


def always(problem: Problem) -> bool:
    """Return True: the metric uses private data on every problem."""
    return True


def anything(problem: Problem) -> tuple[float, float]:
    """Return (−inf, inf): the metric may be any number.

    This function is the default of the field `limits` of a `Metric`.
    """
    return -inf, inf


def share(problem: Problem) -> tuple[float, float]:
    """Return (0, 1), the range of a `Metric` that is a fraction, for its field `limits`."""
    return 0.0, 1.0


def not_negative(problem: Problem) -> tuple[float, float]:
    """Return (0, inf): the metric is at least 0."""
    return 0.0, inf


def as_losses(problem: Problem) -> tuple[float, float]:
    """Return the range of a mean of the problem's losses."""
    return problem.model.least, inf


@dataclass(frozen=True)
class Metric:
    """Quantity that a run records at each evaluation, with its display in tables and plots.

    Attributes:
        name: name in results.
        function: function `(problem, snapshot) -> value`, which JAX traces. The value is a vector if the metric has an
            `axis`, and a scalar otherwise. With `of="mean"`, `function` is instead a NumPy function of one number, such
            as `np.sqrt`.
        of: object that the metric describes:

            * "params": parameters. The metric is recorded for the reported parameters and for every other iterate of
              the protocol, such as "last".
            * "round": the last round.
            * "info": a scalar that the protocol reports in each round.
            * "own": the personal models of machines.
            * "models": the models of all machines in a gossip method.
            * "mean": the mean of another metric. The field `of_mean` of that metric has this metric.
        needs: function `problem -> text`. The text names a requirement of the metric that the problem does not meet,
            such as "a test set". The function returns None if the problem meets all requirements.
        private: function `problem -> bool`. It returns True if the metric is computed from private data, so that no
            guarantee covers the metric. The default function returns None, which means that this is not known.
        limits: function `problem -> (minimum, maximum)` that returns the range of possible values. Plotted intervals
            are clipped to this range.
        constant: function `problem -> float` that returns the metric's value for the best constant prediction. This
            value is computed from the training labels. Tables mark results that are worse than it. The function returns
            None for a metric that is not compared with a constant prediction.
        better: "lower" or "higher": direction of improvement.
        default: True if runs record the metric by default.
        label: text of titles and axes. If it is empty, titles and axes have the name with spaces instead of
            underscores.
        unit: empty, or "%" for a fraction that is displayed in per cent.
        digits: number of displayed decimals.
        shown: places where an experiment displays the metric: "table", and the plots "against_epsilon", "over_rounds"
            and "against_costs".
        axis: name of the axis of a vector, or empty for a scalar. Tables and plots show scalars only.
        of_mean: metric with `of="mean"`, whose `function` is applied to the mean of this metric over runs or
            evaluations. None displays the mean itself.

    >>> import jax.numpy as jnp
    >>> largest = Metric("largest", lambda problem, snapshot: jnp.max(snapshot.params), unit="%", digits=1)
    >>> largest.title, largest.text(0.1234)
    ('largest %', '12.3')
    """

    name: str
    function: Callable[..., Any]
    of: Literal["params", "round", "info", "own", "models", "mean"] = "params"
    needs: Callable[[Problem], str | None] = no_needs
    private: Callable[[Problem], bool | None] = unknown
    limits: Callable[[Problem], tuple[float, float]] = anything
    constant: Callable[[Problem], float | None] = no_constant
    better: Literal["lower", "higher"] = "lower"
    default: bool = True
    label: str = ""
    unit: Literal["", "%"] = ""
    digits: int = 4
    shown: tuple[Literal["table", "against_epsilon", "over_rounds", "against_costs"], ...] = ()
    axis: str = ""
    of_mean: "Metric | None" = None

    @property
    def scale(self) -> float:
        """Factor from recorded to displayed values: 100 for a metric in per cent, otherwise 1."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def words(self) -> str:
        """Name of the metric as tables and plots display it, without its unit."""
        return self.label or self.name.replace("_", " ")

    @property
    def title(self) -> str:
        """Name of the metric as tables and plots display it, with its unit."""
        return f"{self.words} {self.unit}".rstrip()

    def require_arguments(self) -> None:
        """Raise Refusal unless the metric's function can be called with two arguments, (problem, snapshot)."""
        try:
            inspect.signature(self.function).bind(None, None)
        except TypeError:
            known = callable(self.function)
            got = f"{self.name}{inspect.signature(self.function)}" if known else called(self.function)
            raise Refusal(f"metric {self.name!r} must be a function (problem, snapshot), got {got}") from None
        except ValueError:  # a function without a signature, such as one of NumPy
            pass

    def text(self, value: float, *, sign: bool = False) -> str:
        """Return a recorded value as displayed text, in the metric's unit. NaN becomes a dash.

        Args:
            value: recorded value, such as 0.934 for 93.4%.
            sign: True to write a plus sign before a positive value.
        """
        return "–" if isnan(value) else f"{value * self.scale:{'+' * sign}.{self.digits}f}"

    def amount(self, value: float) -> str:
        """Return a difference of two recorded values as text, such as "0.02".

        If the metric's unit is "%", the text is in percentage points, such as "2 points".
        """
        return f"{value * self.scale:g}" + (" points" if self.unit == "%" else "")


@cache
def of_info(name: str) -> Metric:
    """Return a metric that records a scalar of the rounds by its name, such as "clip".

    Its value is the mean of the scalar since the last evaluation. It is marked as computed on private data.

    >>> of_info("clipped").of, of_info("clipped").private(None)
    ('info', True)
    """
    return Metric(name, lambda problem, snapshot: snapshot.info[name], of="info", private=always, default=False)


def iterate_names(protocol, problem: Problem, size: Size) -> tuple[str, ...]:
    """Return the names of iterates at which metrics are evaluated: "output", then the protocol's other iterates.

    Raises:
        Refusal: if iterates have no names, or the output's, or if one has another structure or other shapes than the
            output, such as a row for each machine.
    """

    output, found = _points((as_leaves(protocol.traced), replace(problem.traced, excess=None)), size)
    if not isinstance(found, dict) or OUTPUT in found:
        got = f"{OUTPUT!r}, which is the reported point," if isinstance(found, dict) else called(found)
        raise Refusal(
            f"iterates must be a dict of further points by name, got {got} of {protocol.name}. Name each point"
        )
    for name, point in found.items():
        if jax.tree.structure(point) != jax.tree.structure(output) or _shapes(point) != _shapes(output):
            got = f"{_shapes(output)}, got {_shapes(point)} for {name!r} of {protocol.name}"
            remedy = "Return one point of each name, such as a mean over machines"
            raise Refusal(f"iterates must have the structure and shapes of the output, {got}. {remedy}")
    return (OUTPUT, *sorted(found))


@by_shapes
def _points(parts: tuple[Any, Problem], size: Size) -> tuple[Any, Any]:
    """Return the shapes of a protocol's reported point and of its further iterates, for a problem."""

    def points(parts):
        protocol, problem = parts
        state = protocol.init(problem, size, random_key(0))
        return protocol.output(state), protocol.iterates(state)

    return jax.eval_shape(points, parts)


def evaluate(protocol, problem: Problem, state, noise, metrics: Sequence[Metric], info=None) -> dict[str, Any]:
    """Return the value of every metric at one evaluation, by name.

    A value is a scalar, or a vector if its metric has an axis. Metrics of parameters have a first axis of iterates if
    the protocol has several.

    Args:
        noise: noise in the last round's aggregate, [d], or None.
        info: scalars reported by the rounds, by name; each is the mean since the last evaluation.
    """

    def personal(machine):
        return protocol.rounds.personal(state, machine)

    models, points = seen_of(protocol).models(state), _iterates(protocol, state).values()
    snapshots = [Snapshot(params, noise, info, {}, personal, models) for params in points]
    values = {}
    for metric in metrics:
        if metric.of == "params" and len(snapshots) > 1:
            values[metric.name] = jnp.stack([_value(metric, problem, snapshot) for snapshot in snapshots])
        else:
            values[metric.name] = _value(metric, problem, snapshots[0])
    _require_axes({metric.name: metric.axis for metric in metrics if metric.axis}, values)
    return values


def _require_axes(axes: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Raise Refusal if vectors with the same axis have different lengths."""
    lengths: dict[str, int] = {}
    for name, axis in axes.items():
        length = values[name].shape[-1]
        if lengths.setdefault(axis, length) != length:
            wanted = f"metric {name!r} must have {lengths[axis]} values along {axis!r} as others"
            raise Refusal(f"{wanted}, got {length}. Rename its axis")


def _value(metric: Metric, problem: Problem, snapshot: Snapshot) -> Any:
    """Return the value of a metric. Raise Refusal if it has an axis and is no vector."""
    value = metric.function(problem, snapshot)
    if metric.axis and jnp.ndim(value) != 1:
        got = f"got shape {jnp.shape(value)}. Leave out axis"
        raise Refusal(f"metric {metric.name!r} must be a vector along {metric.axis!r}, {got}")
    return value


def by_iterate(
    metrics: Sequence[Metric], names: Sequence[str], values: Mapping[str, Any]
) -> dict[str, dict[str, np.ndarray]]:
    """Return a run's metrics by iterate, the output first; arrays [evaluations], or [evaluations, …] of vectors.

    Metrics of the round are listed for the output only.

    Args:
        names: names of the iterates, from `iterate_names`.
        values: recorded values of `evaluate`, [evaluations] or [evaluations, iterates].
    """
    several = {metric.name for metric in metrics if metric.of == "params"} if len(names) > 1 else set()
    arrays = {name: np.asarray(value) for name, value in values.items()}
    tables = {OUTPUT: {name: value[:, 0] if name in several else value for name, value in arrays.items()}}
    for place, iterate in enumerate(names[1:], 1):
        tables[iterate] = {name: arrays[name][:, place] for name in arrays if name in several}
    return tables


def _shapes(point: Any) -> Any:
    """Return the shape of every leaf of a point, in its structure."""
    return jax.tree.map(lambda leaf: list(leaf.shape), point)


def _iterates(protocol, state) -> dict[str, Any]:
    """Return the reported parameters and the protocol's other iterates, by name."""
    return {OUTPUT: protocol.output(state), **dict(sorted(protocol.iterates(state).items()))}
