"""Names in a sweep's dataset, the structure that results must have, and parameters that are kept.

Every name has a `long_name` and `units`. A file from elsewhere may have another structure. Kept parameters are vectors
with a structure.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from fedprivjax.bounded_read import json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_between
from fedprivjax.engine.hosts import is_first
from fedprivjax.engine.metric import Metric
from fedprivjax.engine.metrics import METRICS, TRIAL, known
from fedprivjax.engine.packing import packed, unpacked
from fedprivjax.problem.checks import require_alike
from fedprivjax.problem.devices import GIB, memory
from fedprivjax.problem.problem import Problem

PARAMS, PARAMETER = "params", "parameter"  # variable of a dataset, and its last dimension
STRUCTURE = "structure"  # attribute of `params`: JSON of its tree and of the shapes of its leaves
METHOD, PREDICTOR = "method", "predictor"  # variables of a dataset with parameters
BYTES = 4  # float32
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
SHOWN = "shown"  # attribute of custom metrics: JSON of these attributes of `Metric`
HOW = ("of", "better", "label", "unit", "digits", "shown")
CONSTANT = "constant_predictor"  # attribute of a metric
ALONE, HALF = "alone_", "_interval"  # prefix of the mean over machines that train alone, suffix of its half-width
BEST = "best_"  # prefix of variables with the chosen values of a protocol's own grid
WORDS = {
    "batch": "records in a message",
    "client_state_bytes": "bytes of the states that all machines keep between rounds",
    "client": "client, by name or index",
    "clip": "bound on a message's norm, C",
    "diverged": "whether any parameter or metric is not finite",
    "epsilon": "target ε",
    "gradients_per_record": "gradients of a run per stored record; NaN if records are computed",
    "gradients_per_use": "gradients that a machine computes per use of a record",
    "guarantee": "privacy guarantee on the least private schedule, as JSON for fedprivjax.guarantee_of",
    "hours": "simulated hours of a run",
    "idle_steps": "share of computed local steps that change nothing; NaN if participation is secret",
    "iterate": "iterate at which a metric is evaluated",
    "machines": "total number of machines, M",
    "method": "method and its calibrated settings",
    "mu": "target μ of Gaussian differential privacy",
    "noise_std": "standard deviation of the noise per coordinate, before a schedule's weights",
    "params": "parameters of the reported point, for fedprivjax.run_of",
    "per_round": "machines in a round, m",
    "predictor": "loss and preparation of rows of the linear predictor, as JSON for fedprivjax.run_of",
    "radius": "radius of the ball of parameters",
    "realised_epsilon": "realised ε of the worst machine, at the dataset's delta",
    "realised_mu": "realised μ of the worst machine; NaN if no μ is stated",
    "records": "records of a machine",
    "round": "completed rounds",
    "rounds": "rounds of a run, T",
    "rounds_taken": "rounds of a run",
    "seconds": "wall time of a run and its share of compilation, on the machine in the provenance",
    "seed": "seed of a run",
    "sent_bits": "bits that a machine sends per participation",
    "sent_bytes": "bytes that a machine sends in a run, averaged over machines",
    "sent_messages": "messages that a machine sends per participation",
    "step_scale": "step size relative to the protocol's default",
    "step_size": "calibrated step size",
    "target_epsilon": "target ε; NaN if the noise was given",
    TRIAL: "trial with resampled data",
}
UNITS = {"client_state_bytes": "byte", "hours": "h", "sent_bits": "bit", "sent_bytes": "byte", "seconds": "s"}
DIVERGED, GUARANTEE = "diverged", "guarantee"
OF_RUN = (DIVERGED, "realised_mu", "realised_epsilon")  # a value for each run
OF_CONFIGURATION = ("target_epsilon", GUARANTEE)  # a value for each point of the grid
RUN_COSTS = ("sent_bytes", "gradients_per_record")  # first versions recorded no costs
COSTS = ("sent_messages", "sent_bits", "gradients_per_use", "rounds_taken", "seconds")
TEXTS = (GUARANTEE, METHOD, PREDICTOR)  # variables
REQUIRED = ("delta", "non_private_metrics", "non_private_data")  # attributes; first versions had no others
NUMBERS = {"delta": Real, "grid_points": Integral}  # attributes
TEXT_ATTRIBUTES = ("non_private_metrics", "non_private_data", "protocol", "selection", "noise", "precision", "data")
LIMITS = (CONSTANT, "valid_min", "valid_max")  # numbers, attributes of a metric
KINDS = {"b": "truth values", "iu": "integers", "biuf": "numbers", "OTU": "texts"}  # by kinds of NumPy
KINDS |= {"biufOTU": "numbers or texts"}
REMEDY = "Open other files than results with xarray"


def described(data: xr.Dataset, words: Mapping[str, Mapping[str, Any]] | None = None) -> xr.Dataset:
    """Return the dataset with `long_name` and `units` (by default "1") on every variable and coordinate.

    Args:
        words: further attributes by name, which override the defaults. Existing attributes of a variable have priority.

    >>> described(xr.Dataset({"test_loss": ("seed", [0.5])}, {"seed": [0]}))["test_loss"].attrs
    {'long_name': 'test loss', 'units': '1'}
    """
    copy = data.copy()
    for name in map(str, data.variables):
        copy[name].attrs = {**_words(name), **(words or {}).get(name, {}), **data[name].attrs}
    return copy


def expected_words(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return attributes of costs that are expected values, by name."""
    return {name: {"long_name": f"{WORDS[name]}: expected value"} for name in names}


def metric_words(metrics: Iterable[Metric], problem: Problem) -> dict[str, dict[str, Any]]:
    """Return attributes of metrics by name.

    They are the description, the range of possible values on this problem, the constant predictor's value, if any, and
    for custom metrics the display options.
    """
    words = {}
    for metric in metrics:
        limits = zip(("valid_min", "valid_max"), metric.limits(problem), strict=True)
        own = {"long_name": metric.words, **{name: value for name, value in limits if not isinf(value)}}
        constant = metric.constant(problem)
        if constant is not None:
            own[CONSTANT] = constant
        if metric.of != "info" and METRICS.get(metric.name) is not metric:
            own[SHOWN] = json.dumps({name: getattr(metric, name) for name in HOW})
        words[metric.name] = own
    return words


def custom_metrics(datasets: Iterable[xr.Dataset]) -> dict[str, Metric]:
    """Return the custom metrics of datasets by name, for tables and plots. They cannot be computed.

    Raises:
        Refusal: if an attribute was not written by `metric_words`.
    """
    said = {str(name): data[name].attrs[SHOWN] for data in datasets for name in data if SHOWN in data[name].attrs}
    found = {}
    for name, text in said.items():
        try:
            shown = {key: value for key, value in json_value(text).items() if key in HOW}
            found[name] = Metric(name, known(name).function, **{**shown, "shown": tuple(shown["shown"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal(f"{SHOWN} of {name!r} must be as a run writes it, got {text!r}") from None
    return found


def _words(name: str) -> dict[str, str]:
    if name.startswith(BEST):
        of = _words(name.removeprefix(BEST))
        return {"long_name": f"{of['long_name']}: the best of the grid", "units": of["units"]}
    if name.startswith(ALONE):
        of = _words(name.removeprefix(ALONE).removesuffix(HALF))
        what = "half of the 95% interval" if name.endswith(HALF) else "mean over machines"
        return {"long_name": f"{of['long_name']}, each machine alone: {what}", "units": of["units"]}
    return {"long_name": WORDS.get(name) or known(name).words, "units": UNITS.get(name, "1")}


TEXT_ATTRIBUTES += ("prng", "expected", "delta_warning", "data_used", "weights", "non_private_attributes", "alone")
TEXT_ATTRIBUTES += ("selected", "unaccounted_choice", "parts")


def require_schema(data: xr.Dataset) -> None:
    """Raise Refusal unless a dataset has the structure that `sweep` writes. Further variables must be numbers.

    >>> require_schema(xr.Dataset({"test_loss": ("seed", [0.5])}))
    Traceback (most recent call last):
    fedprivjax.Refusal: diverged must be a variable, got none. Open other files than results with xarray
    """
    for name in (DIVERGED, *OF_RUN, *OF_CONFIGURATION, *(RUN_COSTS + COSTS) * (RUN_COSTS[0] in data)):
        _require(name in data.data_vars, name, "be a variable", "none")
    for name in ("seed", "round"):
        _require(name in data.dims, name, "be an axis", "none")
    for name in map(str, data.data_vars):
        _require_variable(data[name], {str(axis) for axis in data[DIVERGED].dims})
    for name in (f"{name.removesuffix(HALF)}{HALF}" for name in map(str, data.data_vars) if name.startswith(ALONE)):
        _require(name in data.data_vars, name, "be a variable", "none")
    for name in map(str, data.dims):
        _require_axis(data, name)
    for name in REQUIRED:
        _require(name in data.attrs, name, "be an attribute", "none")
    for name in (*NUMBERS, *TEXT_ATTRIBUTES):
        _require_attribute(data.attrs.get(name), NUMBERS.get(name, str), name)
    require_between("delta", data.attrs["delta"], 0, 1)
    custom_metrics([data])  # raises Refusal
    if PARAMS in data:
        unflattened(np.zeros(data.sizes[PARAMETER]), data[PARAMS].attrs.get(STRUCTURE, ""))  # raises Refusal


def _require_variable(values: xr.DataArray, runs: set[str]) -> None:
    """Raise Refusal unless a variable has the kind and the axes of its name, and its limits are numbers.

    Args:
        runs: axes of the runs.
    """
    name, found = str(values.name), {str(axis) for axis in values.dims}
    _require_kind(values, "OTU" if name in TEXTS else "b" if name == DIVERGED else "biuf")
    if name == PARAMS:
        axes = runs | {PARAMETER}
    elif name in OF_RUN + RUN_COSTS or "round" in found:
        axes = runs | {"seed"} | (found & {"round", "iterate"} if name in OF_RUN + RUN_COSTS else found)
    else:
        axes = runs - {"seed"} if name in OF_CONFIGURATION + COSTS else found & runs
    _require(found == axes, name, f"have the axes {', '.join(sorted(axes))}", ", ".join(sorted(found)) or "none")
    for limit in LIMITS:
        _require_attribute(values.attrs.get(limit), Real, f"{limit} of {name}")


def _require_axis(data: xr.Dataset, name: str) -> None:
    """Raise Refusal unless an axis has distinct values of its kind, at least one. Parameters have none."""
    _require(data.sizes[name] > 0, name, "have a value", "none")
    if name == PARAMETER:
        return
    _require(name in data.coords, name, "be a coordinate", "an axis without values")
    vector = name not in data[DIVERGED].dims and name != "round"
    _require_kind(data[name], {"iterate": "OTU", "round": "iu"}.get(name, "biufOTU" if vector else "biuf"))
    distinct = bool(data[name].notnull().all()) and data.indexes[name].is_unique
    _require(distinct, name, "have distinct values", data[name].values.tolist())


def _require_kind(values: xr.DataArray, kinds: str) -> None:
    texts = values.dtype.kind != "O" or all(isinstance(one, str) for one in values.values.ravel())
    good = values.dtype.kind in kinds and texts
    _require(good, str(values.name), f"have {KINDS[kinds]}", f"values of type {values.dtype}")


def _require_attribute(value: object, kind: type, name: str) -> None:
    """Raise Refusal unless an attribute, if it is there, is of a type."""
    wanted = "be a text" if kind is str else "be a number"
    _require(value is None or isinstance(value, kind), name, wanted, called(value))


def _require(good: object, name: str, wanted: str, got: object) -> None:
    if not good:
        raise Refusal(f"{name} must {wanted}, got {got}. {REMEDY}")


def as_keep(keep: Sequence[str]) -> tuple[str, ...]:
    """Return the kept parts of runs.

    Raises:
        Refusal: unless they are a list of distinct known parts.

    >>> as_keep(["params"])
    ('params',)
    """
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not set(map(str, keep)) <= {PARAMS}:
        raise Refusal(f'keep must be a list of "{PARAMS}", got {called(keep)}. Write keep = ["{PARAMS}"]')
    return tuple(dict.fromkeys(map(str, keep)))


def flat(params: Any, problem: Problem) -> jax.Array:
    """Return parameters as one float32 vector, shape [parameter]; a pure function.

    Raises:
        Refusal: if their structure is not that of the problem's parameters.
    """
    require_alike("params that are kept", params, problem.start, "the problem's parameters")
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(jnp.float32)


def structure_of(problem: Problem) -> str:
    """Return the tree and the shapes of a problem's parameters as JSON, for `unflattened`.

    Raises:
        Refusal: if the tree has containers other than dicts, lists and tuples.
    """
    try:
        tree = packed(problem.start)[0]
    except Refusal as refusal:
        raise Refusal(f"{str(refusal).partition('. ')[0]}. Leave out keep") from None
    return json.dumps({"tree": tree, "shapes": [np.shape(leaf) for leaf in jax.tree.leaves(problem.start)]})


def unflattened(vector: np.ndarray, structure: str) -> Any:
    """Return the parameters of a vector from `flat`.

    Raises:
        Refusal: if the structure is not one of `structure_of`, or of another number of parameters.

    >>> unflattened(np.arange(3), '{"tree": {"dict": [["w", "array"], ["b", "array"]]}, "shapes": [[], [2]]}')
    {'b': array(0), 'w': array([1, 2])}
    """
    try:
        found = json_value(structure)
        shapes = [tuple(shape) for shape in found["shapes"]]
        tree = jax.tree.structure(unpacked(found["tree"], [np.zeros(()) for _ in shapes]))
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        leaves = [np.reshape(part, shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]
    except Exception as error:  # a text from elsewhere may hold anything
        wanted = f"{STRUCTURE} of {PARAMS} must be as a run writes it, for {len(vector)} numbers"
        raise Refusal(f"{wanted}, got {structure!r}") from error
    return jax.tree.unflatten(tree, leaves)


def print_size(runs: Iterable[tuple[int, int]]) -> None:
    """Print the size of the kept parameters on stderr, in the first process.

    Args:
        runs: number of runs and number of parameters of a run, of every sweep.

    Raises:
        Refusal: if they take more than this computer's memory.
    """
    sweeps = list(runs)
    number, needed, there = sum(count for count, _ in sweeps), BYTES * sum(count * d for count, d in sweeps), memory()
    if needed > there:
        raise Refusal(
            f"parameters that are kept must fit in this computer's {there / GIB:.3g} GiB of memory, got those of "
            f"{number} runs, which take {needed / GIB:.3g} GiB. Leave out keep, or sweep over fewer values or seeds"
        )
    if is_first():
        of = "1 run" if number == 1 else f"{number} runs"
        print(f"parameters of {of} take {size_text(needed)}", file=sys.stderr, flush=True)


def size_text(size: float) -> str:
    """Return a number of bytes as text.

    >>> size_text(75_360_000), size_text(120)
    ('75.4 MB', '120 B')
    """
    return next((f"{size / unit:.3g} {name}" for unit, name in BYTE_UNITS if size >= unit), f"{size:.0f} B")
