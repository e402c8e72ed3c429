"""What the names in a dataset mean: `long_name` and `units` of every variable and coordinate."""

import json
from collections.abc import Iterable, Mapping
from math import isinf
from typing import Any

import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import known
from fedprivjax.problem.problem import Problem

SHOWN = "shown"  # attribute of custom metrics: JSON of these attributes of `Metric`
HOW = ("of", "better", "label", "unit", "digits", "shown")
CONSTANT = "constant_predictor"  # attribute of a metric
ALONE, HALF = "alone_", "_interval"  # around a metric: its mean over machines that train alone, and half its interval
BEST = "best_"  # of a variable that holds the chosen values of a protocol's own grid
WORDS = {
    "batch": "records in a message",
    "clip": "bound on a message's norm, C",
    "diverged": "whether any parameter or metric is not finite",
    "epsilon": "target ε",
    "gradients_per_record": "gradients of a run, over the records that machines hold; NaN where they are computed",
    "gradients_per_use": "gradients that a machine computes for a use of a record",
    "guarantee": "privacy guarantee on the schedule that protects least, as JSON: fedprivjax.guarantee_of reads it",
    "iterate": "which of a protocol's points a metric is of",
    "machines": "machines in all, M",
    "mu": "target μ of Gaussian differential privacy",
    "noise_std": "standard deviation of the noise in one coordinate, before a schedule's weights",
    "per_round": "machines in a round, m",
    "radius": "radius of the ball of parameters",
    "realised_epsilon": "realised ε of the worst machine, at the dataset's delta",
    "realised_mu": "realised μ of the worst machine; NaN where none is stated",
    "records": "records of a machine",
    "round": "rounds done",
    "rounds": "rounds of a run, T",
    "rounds_taken": "rounds of a run",
    "seconds": "wall time of a run with its part of compiling, on the machine that the provenance names",
    "seed": "seed of a run",
    "sent_bits": "bits that a machine sends in a round in which it takes part",
    "sent_bytes": "bytes that a machine sends in a run, the mean over machines",
    "sent_messages": "messages that a machine sends in a round in which it takes part",
    "step_scale": "step size, relative to the protocol's own",
    "step_size": "step size, as calibrated",
    "target_epsilon": "ε that was asked for; NaN where it was noise",
    "trial": "trial: data drawn anew",
}
UNITS = {"sent_bits": "bit", "sent_bytes": "byte", "seconds": "s"}


def described(data: xr.Dataset, words: Mapping[str, Mapping[str, Any]] | None = None) -> xr.Dataset:
    """The dataset with `long_name` and `units` ("1" where there is none) on every variable and coordinate.

    Args:
        words: further attributes by name, which go before the usual ones; what a variable says already is kept.

    >>> described(xr.Dataset({"test_loss": ("seed", [0.5])}, {"seed": [0]}))["test_loss"].attrs
    {'long_name': 'test loss', 'units': '1'}
    """
    own = words or {}
    named = {name: {**_words(str(name)), **own.get(str(name), {}), **data[name].attrs} for name in data.variables}
    copy = data.copy()
    for name, attributes in named.items():
        copy[name].attrs = attributes
    return copy


def metric_words(metrics: Iterable[Metric], problem: Problem) -> dict[str, dict[str, Any]]:
    """Attributes of metrics by name: their words, the limits that no value of this problem's is beyond, the constant
    predictor's value, if there is one, and, of custom metrics, how they are shown."""
    return {
        metric.name: {
            "long_name": metric.words,
            **_limits(metric, problem),
            **_constant(metric, problem),
            **_shown(metric),
        }
        for metric in metrics
    }


def custom_metrics(datasets: Iterable[xr.Dataset]) -> dict[str, Metric]:
    """Return the custom metrics of datasets by name, as far as tables and plots need them: they compute nothing.

    Raises:
        Refusal: an attribute that `metric_words` did not write.
    """
    said = {str(name): data[name].attrs[SHOWN] for data in datasets for name in data if SHOWN in data[name].attrs}
    found = {}
    for name, text in said.items():
        try:
            shown = {key: value for key, value in json.loads(text).items() if key in HOW}
            found[name] = Metric(name, known(name).function, **{**shown, "shown": tuple(shown["shown"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal(f"{SHOWN} of {name!r} must be as a run writes it, got {text!r}") from None
    return found


def _shown(metric: Metric) -> dict[str, str]:
    if metric.of == "info" or known(metric.name) is metric:
        return {}
    return {SHOWN: json.dumps({name: getattr(metric, name) for name in HOW})}


def _constant(metric: Metric, problem: Problem) -> dict[str, float]:
    value = metric.constant(problem)
    return {} if value is None else {CONSTANT: value}


def _limits(metric: Metric, problem: Problem) -> dict[str, float]:
    limits = zip(("valid_min", "valid_max"), metric.limits(problem), strict=True)
    return {name: value for name, value in limits if not isinf(value)}


def _words(name: str) -> dict[str, str]:
    if name.startswith(BEST):
        of = _words(name.removeprefix(BEST))
        return {"long_name": f"{of['long_name']}: the best of the grid", "units": of["units"]}
    if name.startswith(ALONE):
        of = _words(name.removeprefix(ALONE).removesuffix(HALF))
        what = "half of the 95% interval" if name.endswith(HALF) else "mean over machines"
        return {"long_name": f"{of['long_name']}, each machine alone: {what}", "units": of["units"]}
    return {"long_name": WORDS.get(name) or known(name).words, "units": UNITS.get(name, "1")}
