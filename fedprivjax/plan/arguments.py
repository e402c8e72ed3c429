"""Checks of a run's arguments, and of its plan.

Arguments may be swapped, classes instead of objects, names, or numbers out of range. A plan must agree with its sampler
and its sampler with the one that the accountant assumes.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fedprivjax.checks.numbers import kinds_of_parts, leaves_of, numbers_in, with_numbers
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package, require_of_package
from fedprivjax.checks.values import NUMBERS, called, require_float32, require_one, require_positive
from fedprivjax.plan.participation import check_participation
from fedprivjax.plan.plan import Plan, machine_values
from fedprivjax.plan.samplers import LocalWork, Sampler
from fedprivjax.problem.problem import Problem

ROUNDING = 1e-6  # relative rounding error of a float32 weight

INFINITE = ("mu", "epsilon")  # may be infinite, which means non-private
POSITIVE = (*INFINITE, "step_size", "step_scale", "clip")


def require_arguments(protocol: Any, problem: Any, participation: Any) -> Any:
    """Return the protocol with plain numbers, as `require_protocol` does, and check the other arguments.

    Raises:
        Refusal: unless the arguments are a protocol, a problem and a participation scheme, in this order.

    >>> import numpy as np
    >>> from fedprivjax import DPMu2, Full, Softmax, linear_problem
    >>> require_arguments(linear_problem(np.eye(2), [0, 1], Softmax(2)), DPMu2(mu=1.0), Full(2))
    Traceback (most recent call last):
    fedprivjax.Refusal: protocol must come first, then problem and participation, got a Problem as protocol
    """
    _require_single_precision()
    protocol = require_protocol(protocol)
    require_problem(problem)
    check_participation(participation)
    return protocol


def _require_single_precision() -> None:
    """Raise Refusal in jax's 64-bit mode, which programs do not support."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        raise Refusal("jax_enable_x64 must be off, because programs compute in float32, got on. Unset JAX_ENABLE_X64")


def require_protocol(protocol: Any) -> Any:
    """Return the protocol with plain numbers, see `plain_numbers`. Custom protocols need not repeat these checks.

    Raises:
        Refusal: if `protocol` is not a protocol object, or if a setting is invalid for every protocol, such as several
            values of a setting that takes one number.

    >>> from fedprivjax import DPMu2
    >>> require_protocol(DPMu2)
    Traceback (most recent call last):
    fedprivjax.Refusal: protocol must be an object, such as DPMu2(...), got the class DPMu2
    """
    if isinstance(protocol, Problem):
        raise Refusal("protocol must come first, then problem and participation, got a Problem as protocol")
    if isinstance(protocol, type):
        raise Refusal(f"protocol must be an object, such as {protocol.__name__}(...), got {called(protocol)}")
    if not is_dataclass(protocol):
        raise Refusal(
            f"protocol must be an object of a flax.struct.dataclass, such as DPMu2(mu=1.0), got {called(protocol)}"
        )
    require_of_package(protocol=protocol)
    protocol = plain_numbers(protocol)
    for name, value in _settings(protocol).items():
        if name in NUMBERS:
            require_one(name, value)
    own = (field.name for field in fields(protocol) if field.metadata.get("pytree_node", True))
    for name, value in ({name: getattr(protocol, name) for name in own} | numbers_in(protocol)).items():
        _require_number(name, value)
    return protocol


def _require_number(name: str, value: Any) -> None:
    """Raise Refusal for a text in the place of a number, or for a number out of its range or float32's.

    Args:
        name: name of a setting of the protocol or of a part, such as "privacy.clip".
    """
    if isinstance(value, str):
        static = "Declare a setting that is not a number as struct.field(pytree_node=False)"
        raise Refusal(f"{name} must be a number, got {value!r}. {static}")
    if not isinstance(value, int | float | np.number):
        return
    last = name.rpartition(".")[2]
    if last in POSITIVE:
        require_positive(name, value, infinite=last in INFINITE)
    if last == "noise_std" and not 0 <= value < np.inf:
        raise Refusal(f"{name} must be finite and not negative, got {value}")
    require_float32(name, value)


def plain_numbers(protocol: Any) -> Any:
    """Return the protocol with arrays replaced by Python numbers: a number for a scalar array, tuples for others.

    A number whose default is an array stays an array.

    Raises:
        Refusal: if a sweepable number is given as an array with axes (except ε of each machine), or the protocol
            rejects the number.

    >>> from fedprivjax import DPMu2
    >>> plain_numbers(DPMu2(mu=np.array(2.0))).mu
    2.0
    """
    arrays = {name: value for name, value in _settings(protocol).items() if isinstance(value, np.ndarray | jax.Array)}
    arrays = {name: value for name, value in arrays.items() if not isinstance(value, Tracer)}
    parts = {name: getattr(protocol, name) for name in kinds_of_parts(protocol)}
    defaults = leaves_of(protocol)
    for part, held in ((part, held) for part, held in parts.items() if is_dataclass(held)):
        defaults |= {f"{part}.{name}": default for name, default in leaves_of(held).items()}
    own_arrays = {name for name, default in defaults.items() if np.ndim(default)}
    arrays = {name: value for name, value in arrays.items() if name not in own_arrays or not value.ndim}
    swept = numbers_in(protocol).keys() - {"epsilon"}
    for name, value in arrays.items():
        if name in swept:
            require_one(name, value)
    plain = {name: value.item() if not value.ndim else _nested(value.tolist()) for name, value in arrays.items()}
    return with_numbers(protocol, plain) if plain else protocol


def _settings(protocol: Any) -> dict[str, Any]:
    """Return the settings of a protocol and its components by name, without values that calibration derives."""
    own = {field.name: getattr(protocol, field.name) for field in fields(protocol) if "derived" not in field.metadata}
    return own | numbers_in(protocol)


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values


def require_problem(problem: Any) -> None:
    """Raise Refusal if `problem` is not a Problem.

    >>> import numpy as np
    >>> require_problem(np.eye(3))
    Traceback (most recent call last):
    fedprivjax.Refusal: problem must be a Problem, ... linear_problem(X, y, loss), got an array of shape (3, 3)
    """
    if not isinstance(problem, Problem):
        makers = "such as from_dataset(data) or linear_problem(X, y, loss)"
        raise Refusal(f"problem must be a Problem, {makers}, got {called(problem)}")


def require_same_sampler(plan: Plan, assumed: Sampler | None, name: str) -> None:
    """Raise Refusal unless the plan's records were sampled as the protocol `name` and its accountant assume.

    For example, a plan sampled with replacement is rejected if the accountant assumes sampling without replacement.
    """
    if plan.sampler != assumed:
        drawn, needed = (sampler or "one sample per message" for sampler in (plan.sampler, assumed))
        raise Refusal(f"plan must be drawn by the sampler of {name}, {needed}, got a plan drawn by {drawn}")


def require_valid_plan(plan: Plan, problem: Problem) -> None:
    """Raise Refusal if a record of a sampled or user-supplied plan has more influence than its sampler allows.

    * Each record must exist and belong to its machine.
    * Its weight is at most that of one record of a batch, and 0 in empty slots.
    * It occurs at most once in a message, unless the sampler may repeat records or the accountant counts every use.
    * It is in no more local steps of a round, or messages of a custom sampler, than the sampler states.
    * It is in one message of a round, which counts as one use.

    The result is cached per plan. Secret samples that are not drawn yet are checked when they are drawn, or here if the
    plan has other records or weights than the problem. The message names the first round with an invalid record.
    """
    if plan.will_be_of(problem):
        return
    plan.once(
        ("valid", problem.partition_table, problem.examples, problem.machine_weights), lambda: _check(plan, problem)
    )


def _check(plan: Plan, problem: Problem) -> bool:
    samples = plan.samples.reshape(*plan.schedule.participants.shape, plan.width)
    weights = np.ones(samples.shape, np.float32) if plan.weights is None else plan.weights
    used = weights != 0
    _refuse_first(used & ~plan.schedule.present[:, :, None], "weights must be 0 in empty slots", weights)
    most = _most(plan, problem)
    beyond = ~((weights >= 0) & (weights <= most * (1 + ROUNDING)))
    _refuse_first(beyond, lambda at: f"weights must be from 0 to {np.broadcast_to(most, beyond.shape)[at]:g}", weights)
    if problem.stored:
        _refuse_first(
            used & ~((samples >= 0) & (samples < problem.examples)),
            f"samples must be among the {problem.examples} examples",
            samples,
        )
    if problem.partition_table is not None and problem.stored:
        own = _owners(problem)[np.where(used, samples, 0)] == plan.schedule.participants[:, :, None]
        _refuse_first(used & ~own, "samples must be the machine's own records", samples)
    steps = _steps_of_distinct_records(plan)
    if steps:
        where = "message" if steps == 1 else "local step"
        _refuse_first(_again(samples, used, steps), f"samples must occur once in a {where}", samples)
        _refuse_more_uses(plan, problem, samples, used)
    if problem.stored and (plan.sampler is None or plan.sampler.pooled):
        again = _again(samples.reshape(len(samples), 1, -1), used.reshape(len(samples), 1, -1), 1)
        _refuse_first(again, "samples must occur once in a round", samples)
    return True


def _most(plan: Plan, problem: Problem) -> np.ndarray:
    """Return the largest weight that a record may have in each slot, [rounds, per_round, 1], or one for all."""
    sampler = plan.sampler
    if sampler is None or not plan.width:  # the public part of a secret plan has no width
        return np.ones(())
    if problem.partition_table is None:
        return np.asarray(1 / np.asarray(sampler.batch, float))
    sizes = problem.partition_table.sizes
    each = machine_values("machine_weights", problem.message_factors, sizes.size) / sampler.batches(sizes)
    return each[plan.schedule.participants][:, :, None]


def _owners(problem: Problem) -> np.ndarray:
    """Return the machine that owns each example, or −1 if no machine does, int [examples]."""
    assert problem.partition_table is not None
    rows = problem.partition_table.rows
    owner = np.full(int(problem.examples), -1)
    machine, place = np.nonzero(rows >= 0)
    owner[rows[machine, place]] = machine
    return owner


def _steps_of_distinct_records(plan: Plan) -> int:
    """Return the number of parts of a message in which a record occurs at most once, or 0 if it may be repeated."""
    sampler = plan.sampler
    if isinstance(sampler, LocalWork):
        custom = not (of_package(type(sampler)) and of_package(type(sampler.of_step)))
        counted = (custom or not plan.secret) and not sampler.of_step.repeats and plan.width
        return sampler.cut(plan.width) if counted else 0
    return int(sampler is not None and (sampler.settled or (plan.secret and not sampler.repeats)))


def _refuse_more_uses(plan: Plan, problem: Problem, samples: np.ndarray, used: np.ndarray) -> None:
    """Raise Refusal if a record, at most once in a part of a message, is in more parts or messages than stated."""
    sampler, table = plan.sampler, problem.partition_table
    assert sampler is not None
    if isinstance(sampler, LocalWork):
        most = np.broadcast_to(sampler.uses, plan.size.machines)[plan.schedule.participants]
        for limit in np.unique(most).tolist():
            over = _again(samples, used, 1, int(limit)) & (most == limit)[..., None]
            _refuse_first(over, f"samples must be in at most {limit} local steps of a round", samples)
    elif sampler.settled and table is not None and problem.stored and not of_package(type(sampler)):
        columns = plan.schedule.total, table.sizes, sampler.batches(table.sizes)
        kinds, kind = np.unique(np.stack(columns), axis=1, return_inverse=True)
        most = np.array([sampler.releases(*column) if column[0] else 0 for column in kinds.T.tolist()])[kind.ravel()]
        messages = np.bincount(samples[used], minlength=int(problem.examples))
        over = used & (messages[np.where(used, samples, 0)] > most[plan.schedule.participants][..., None])
        _refuse_first(over, f"samples must be in as many messages as releases of {sampler} states", samples)


def _again(samples: np.ndarray, used: np.ndarray, steps: int, most: int = 1) -> np.ndarray:
    """Return the slots in which more than `most` used places of a step have the same record, [rounds, per_round, 1]."""
    named = np.where(used, samples, -1 - np.arange(samples.shape[2], dtype=np.int32))
    named = np.sort(named.reshape(*samples.shape[:2], steps, -1), axis=3)
    end = max(0, named.shape[3] - most)
    return (named[..., most:] == named[..., :end]).any(axis=(2, 3))[..., None]


def _refuse_first(wrong: np.ndarray, message: str | Callable[[tuple], str], values: np.ndarray) -> None:
    if not wrong.any():
        return
    at = tuple(int(place) for place in np.unravel_index(np.argmax(wrong), wrong.shape))
    text = message if isinstance(message, str) else message(at)
    raise Refusal(f"{text}, got {values[at]:g} in round {at[0] + 1}, slot {at[1] + 1}")
