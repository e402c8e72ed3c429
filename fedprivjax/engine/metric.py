"""A metric as one object: what is computed, what it needs, whether it is private, how it is shown."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf, isnan
from typing import Any, Literal, NamedTuple

from fedprivjax.problem.problem import Problem


class Snapshot(NamedTuple):
    """What a metric may look at.

    Attributes:
        params: the reported parameters.
        noise: the noise in the last round's aggregate, [d], or None.
        info: scalars that the rounds reported, by name, each the mean since the last record.
    """

    params: Any
    noise: Any = None
    info: Any = None


def needs_nothing(problem: Problem) -> None:
    """Every problem has what the metric needs."""


def unknown(problem: Problem) -> None:
    """Nobody said whether the metric looks at private data."""


def never(problem: Problem) -> bool:
    """The metric looks at no private data."""
    return False


def always(problem: Problem) -> bool:
    """The metric looks at private data, whatever the problem."""
    return True


def anything(problem: Problem) -> tuple[float, float]:
    """The metric may be any number."""
    return -inf, inf


def share(problem: Problem) -> tuple[float, float]:
    """The metric is a share, from 0 to 1."""
    return 0.0, 1.0


def not_negative(problem: Problem) -> tuple[float, float]:
    """The metric is 0 or more."""
    return 0.0, inf


def as_losses(problem: Problem) -> tuple[float, float]:
    """The metric is a mean of the problem's losses."""
    return problem.model.least, inf


def no_constant(problem: Problem) -> None:
    """The metric has no constant predictor."""


@dataclass(frozen=True)
class Metric:
    """A scalar that a run records, and everything that the library knows of it.

    Attributes:
        name: what it is recorded under.
        function: `(problem, snapshot) -> scalar`, traced by jax; of "mean": what is made of another's mean, by NumPy.
        of: "params", of a point: recorded for the output and for every other iterate of the protocol; "round", of the
            last round (its noise), and "info", of the scalars that the rounds report: recorded once; "mean", made of
            another's mean over a trial's runs, or over a run's records.
        needs: `problem -> text`: what the problem lacks, such as "a test set"; None where it lacks nothing.
        private: `problem -> bool`: whether it is computed on private data, and so outside the guarantee; None, and
            the default, is not known.
        limits: `problem -> (least, most)`: what no value can be beyond; intervals are drawn within them.
        constant: `problem -> float`: value of the best constant prediction, from the training labels, on the host; None
            if there is none. Tables mark worse values.
        better: whether a "lower" or a "higher" value is the better one: a grid's point is chosen by it.
        default: whether it is recorded without being named.
        label: the words of titles and axes; empty: the name, with spaces.
        unit: empty, or "%": shown in per cent, recorded as a share.
        digits: shown behind the point.
        shown: where an experiment shows it: in a "table", in a plot "against_epsilon", "over_rounds", or
            "against_costs": rounds, bytes and gradients, where protocols differ in the former two.
        of_mean: the metric that is made of its mean over a trial's runs, or a run's records, such as a root; None where
            the mean itself is of interest.

    >>> import jax.numpy as jnp
    >>> largest = Metric("largest", lambda problem, snapshot: jnp.max(snapshot.params), unit="%", digits=1)
    >>> largest.title, largest.text(0.1234)
    ('largest %', '12.3')
    """

    name: str
    function: Callable[..., Any]
    of: Literal["params", "round", "info", "mean"] = "params"
    needs: Callable[[Problem], str | None] = needs_nothing
    private: Callable[[Problem], bool | None] = unknown
    limits: Callable[[Problem], tuple[float, float]] = anything
    constant: Callable[[Problem], float | None] = no_constant
    better: Literal["lower", "higher"] = "lower"
    default: bool = True
    label: str = ""
    unit: Literal["", "%"] = ""
    digits: int = 4
    shown: tuple[Literal["table", "against_epsilon", "over_rounds", "against_costs"], ...] = ()
    of_mean: "Metric | None" = None

    @property
    def scale(self) -> float:
        """What a recorded value is multiplied by where it is shown."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def words(self) -> str:
        """What it is called where it is shown."""
        return self.label or self.name.replace("_", " ")

    @property
    def title(self) -> str:
        """What it is called, with its unit."""
        return f"{self.words} {self.unit}".rstrip()

    def text(self, value: float, *, sign: bool = False) -> str:
        """A value as it is shown, with its sign where asked for; a dash for NaN."""
        return "–" if isnan(value) else f"{value * self.scale:{'+' * sign}.{self.digits}f}"

    def amount(self, value: float) -> str:
        """A difference of values in words: "0.02", or "2 points" of per cent."""
        return f"{value * self.scale:g}" + (" points" if self.unit == "%" else "")


@cache
def of_info(name: str) -> Metric:
    """A scalar that the protocol's rounds report, as a metric: its mean since the last record, on private data.

    >>> of_info("clipped").of, of_info("clipped").private(None)
    ('info', True)
    """
    return Metric(name, lambda problem, snapshot: snapshot.info[name], of="info", private=always, default=False)
