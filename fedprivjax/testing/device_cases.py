"""Cases of the comparison of a device with the CPU: a small run for every option of every method and algorithm.

The options are every sampler, noise schedule, factor and trust model of the registries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from fedprivjax.checks.numbers import leaves_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.method.local_privacy import UNITS
from fedprivjax.method.small_form import examples_of
from fedprivjax.noise import NOISE_SCHEDULES
from fedprivjax.noise.factors import FACTORS
from fedprivjax.noise.factors.reduced import ALLOCATIONS
from fedprivjax.noise.message_factors import SUM_FACTORS
from fedprivjax.noise.server_factors import INDEPENDENT, ROUND_FACTORS
from fedprivjax.plan.participation import Full, Participation, Uniform, Varying
from fedprivjax.plan.samplers import SAMPLERS
from fedprivjax.privacy.terms import TRUST, Terms
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import ALGORITHMS, PROTOCOLS
from fedprivjax.testing.combinations import (
    DEFINED,
    FIXED,
    NONE,
    algorithms,
    combinations,
    composed,
    protocol_of,
    small_problem,
    takes_paths,
)

OPTIONS: dict[str, tuple[str, ...]] = {  # settings with registered values
    "trust": tuple(TRUST),
    "unit": UNITS,
    "sampler": tuple(SAMPLERS),
    "noise_schedule": tuple(dict.fromkeys((*NOISE_SCHEDULES, *SUM_FACTORS, *ROUND_FACTORS))),
    "factor": tuple(FACTORS),
    "allocation": tuple(ALLOCATIONS),
}
MACHINES, PER_ROUND, RECORDS, FEATURES, CLASSES, ROUNDS = 4, 2, 36, 5, 3, 12
NUMBERS = {"noise_std": 0.4, "step_size": 0.1}
DISTANT = {"radius": 0.1}  # of difference quotients, which divide the rounding errors of losses by it
SCHEMES: tuple[Participation, ...] = (Uniform(MACHINES, PER_ROUND), Full(MACHINES))
PLAIN = {
    "unit": UNITS,
    "noise": (INDEPENDENT,),
    "participation": ("uniform",),
    "clip": (FIXED,),
    "encoder": (NONE,),
    "relation": (Terms.relation,),
}
VARYING = Varying.between(MACHINES, 1, PER_ROUND + 1)


@dataclass(frozen=True, eq=False)
class DeviceCase:
    """A small run of one method.

    Attributes:
        label: name of the method, and the option that the case is for.
        protocol: protocol with a noise and a step size.
        problem, participation: settings of its run.
    """

    label: str
    protocol: Any
    problem: Problem
    participation: Participation

    def ready(self, **changes: Any) -> ReadyRun:
        """Return the prepared run, with changes of the protocol's settings."""
        return ready(replace(self.protocol, **changes), self.problem, self.participation, **RUN)


RUN: dict[str, Any] = {"rounds": ROUNDS, "metrics": ("train_loss",), "eval_every": 1}


def cases(methods: Mapping[str, tuple[type, str]] | None = None) -> list[DeviceCase]:
    """Return a case for every option of every method that can run, and for the algorithms that have no method.

    Args:
        methods: methods with their descriptions by name; None is `fedprivjax.protocols.PROTOCOLS`, and the algorithms.

    Raises:
        Refusal: if a method runs with none of its `examples`.

    >>> [case.label for case in cases({"user_agd": PROTOCOLS["user_agd"]})][:2]
    ['user_agd', 'user_agd, trust = none']
    """
    chosen = PROTOCOLS if methods is None else methods
    found = [case for name, (method, _) in chosen.items() for case in _of_method(name, method)]
    if methods is None:
        known = composed().values()
        found += [case for name in ALGORITHMS if algorithms()[name] not in known for case in _of_algorithm(name)]
    return found


def _of_method(name: str, method: type) -> Iterator[DeviceCase]:
    """Yield the method's base case, one case for each other value of an option, and one with a varying cohort."""
    examples = [{**NUMBERS, **settings} for settings in examples_of(method)]
    base = _first(name, method, examples)
    if base is None:
        problems = f"on {len(_problems())} problems with {len(SCHEMES)} participation schemes"
        raise Refusal(f"examples of {name} must give a run, got none {problems}. Define them in the method")
    yield base
    seen = [base.protocol]
    for option, value in _options(method):
        case = _first(f"{name}, {option} = {value}", method, [{**each, option: value} for each in examples])
        if case is not None and case.protocol not in seen:
            seen.append(case.protocol)
            yield case
    case = _first(f"{name}, varying cohort", method, examples, (VARYING,))
    if case is not None:
        yield case


def _of_algorithm(name: str) -> Iterator[DeviceCase]:
    """Yield a case for each class of privacy objects and each unit with which a pair is defined."""
    seen: set[tuple[type, str]] = set()
    for cell, outcome in combinations([name], **PLAIN).items():
        if outcome == DEFINED and (cell.privacy, cell.unit) not in seen:
            seen.add((cell.privacy, cell.unit))
            label = f"{name}, privacy = {cell.privacy.__name__}, unit = {cell.unit}"
            kind = algorithms()[name]
            problem = small_problem(kind) if takes_paths(kind) else _problems()[1]
            protocol = protocol_of(kind, cell)
            own = {name: value for name, value in DISTANT.items() if name in leaves_of(kind)}
            if own:
                protocol = replace(protocol, algorithm=replace(protocol.algorithm, **own))
            yield DeviceCase(label, protocol, problem, SCHEMES[0])


def _options(method: type) -> Iterator[tuple[str, str]]:
    """Yield every option of a method with each of its registered values."""
    names = {field.name for field in fields(method)}
    for option in (option for option in OPTIONS if option in names):
        yield from ((option, value) for value in OPTIONS[option])


def _first(
    label: str, method: type, examples: list[dict[str, Any]], schemes: tuple[Participation, ...] = SCHEMES
) -> DeviceCase | None:
    """Return the first run that is not refused, or None."""
    for settings, problem, scheme in product(examples, _problems(), schemes):
        try:
            case = DeviceCase(label, method(**settings), problem, scheme)
            case.ready()
        except Refusal:
            continue
        return case
    return None


@cache
def _problems() -> tuple[Problem, ...]:
    """Return softmax regression on a ball, with a shared dataset and with a dataset for each machine."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(MACHINES, RECORDS, FEATURES))
    features = (features / np.linalg.norm(features, axis=-1, keepdims=True)).astype(np.float32)
    labels = np.argmax(features @ rng.normal(size=(FEATURES, CLASSES)), axis=-1)

    def make(features, labels):
        return linear_problem(features, labels, Softmax(CLASSES), feature_bound=1.0, constraint=Ball(1.0))

    return make(features.reshape(-1, FEATURES), labels.ravel()), make(features, labels)
