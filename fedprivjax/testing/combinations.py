"""Table of combinations: which settings of privacy objects are defined for which algorithms, or why not.

Every cell is the pair of an algorithm with a privacy object, checked on a small problem. Nothing is compiled. A cell is
defined if no object refuses it, and if its event states the unit, trust model and relation of the cell. Otherwise the
outcome is the name of the setting in the refusal, or of the statement that differs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple, get_type_hints

import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.encoders import ENCODERS
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.local_privacy import UNITS
from fedprivjax.method.pairing import privacy_for
from fedprivjax.method.protocol import pair
from fedprivjax.method.seen import costs_of
from fedprivjax.noise.server_factors import INDEPENDENT
from fedprivjax.plan.draw import draw_plan
from fedprivjax.plan.participation import Full, Participation, PoissonCohorts, SecretSubsets, Uniform
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.samplers import SAMPLERS, LocalEpochs, LocalSteps, Poisson
from fedprivjax.privacy.event_on_plan import event_of, require_trusted
from fedprivjax.privacy.relations import RELATIONS
from fedprivjax.privacy.terms import MACHINE, RECORD, TRUST, Terms
from fedprivjax.problem.build import general_problem, linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Logistic
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import Once
from fedprivjax.protocols import ALGORITHMS, PROTOCOLS

DEFINED = "defined"
NONE, FRESH, FIXED, ADAPTIVE = "none", "fresh", "fixed", "adaptive"
MACHINES, RECORDS, ROUNDS, RATE = 4, 12, 12, 0.25
NOISES = (INDEPENDENT, "uniform", "toeplitz", "tree")  # one of each kind of noise over rounds
SCHEMES: dict[str, Participation] = {
    "full": Full(MACHINES),
    "uniform": Uniform(MACHINES, 2),
    "poisson_cohorts": PoissonCohorts(MACHINES, 0.5),
    "secret_subsets": SecretSubsets(MACHINES, 2),
}
PUBLIC_RATE = "poisson of a public rate"
WORKS = {
    "local_epochs": LocalEpochs(1, 4),
    f"local_steps, {PUBLIC_RATE}": LocalSteps(2, Poisson(3, rate=RATE)),
}
NAMES_OF_UNITS = {RECORD: "record", MACHINE: "machine"}


class Cell(NamedTuple):
    """One combination of an algorithm with privacy settings.

    Attributes:
        algorithm: name of the algorithm, a key of `algorithms()`, such as "sgd".
        privacy: class of the object that clips, adds noise and states the guarantee.
        unit: protected unit, "record" or "machine", or "none" for a run without noise.
        trust: trust model, such as "none" or "server", a key of `fedprivjax.privacy.terms.TRUST`.
        noise: correlation of the noise over rounds, such as "independent" or "tree".
        records: sampler of the records of a message, such as "subset".
        participation: participation scheme, such as "uniform".
        clip: "fixed" or "adaptive".
        encoder: compression of the messages, or "none".
        relation: neighbouring relation, "replace-one" or "add-or-remove-one".
    """

    algorithm: str
    privacy: type
    unit: str
    trust: str
    noise: str
    records: str
    participation: str
    clip: str
    encoder: str
    relation: str


class Row(NamedTuple):
    """Table row for all combinations (`Cell`) of some values, which have the same outcome.

    Attributes:
        values: one or several values of each field of `Cell`, by the name of the field.
        outcome: "defined" if the package defines these combinations, else the name of the setting that is refused.
    """

    values: Mapping[str, tuple[str, ...]]
    outcome: str


def algorithms() -> dict[str, type]:
    """Return the classes of all algorithms in the package, by name.

    An algorithm is a class such as `SGD`, which defines what machines and server compute, without clipping and noise.
    Names are of two kinds, and an algorithm with local steps can have both:

    * the name of the algorithm in experiment files, such as "sgd";
    * for algorithms without such a name, the name of a method that uses the algorithm, such as "tree_momentum".
    """
    found = {name: kind for name, (kind, _) in ALGORITHMS.items()}
    methods = {name: kind for name, kind in composed().items() if privacy_for(kind)}
    return found | {
        name: kind for name, kind in methods.items() if kind not in found.values() or issubclass(kind, LocalAlgorithm)
    }


def composed() -> dict[str, type]:
    """Return the algorithms that methods compose, by the method's name."""
    found = {}
    for name, (method, _) in PROTOCOLS.items():
        made = getattr(method, "algorithm", None)
        kind = get_type_hints(made.fget).get("return") if isinstance(made, property) else None
        if isinstance(kind, type):
            found[name] = kind
    return found


def combinations(names: Iterable[str] | None = None, **chosen: Sequence[str]) -> dict[Cell, str]:
    """Return the outcome of every combination of an algorithm with privacy settings.

    The outcome is "defined", or the name of the setting that is refused.

    Args:
        names: names of algorithms, the keys of `algorithms()`. None is all of them.
        chosen: values of fields of `Cell`, such as `unit=["record"]`. The result has only combinations of these values.

    >>> found = combinations(["sgd"], unit=["record"], participation=["uniform"], relation=["replace-one"])
    >>> defined = [cell for cell in found if found[cell] == DEFINED and cell.privacy.__name__ == "NoisyMessages"]
    >>> [cell.noise for cell in defined if cell.trust == "server"]
    ['independent', 'uniform', 'toeplitz']
    """
    known, check = algorithms(), _Checks()
    found = {}
    for name in known if names is None else names:
        for kind in privacy_for(known[name]):
            for cell in cells(name, kind, chosen):
                found[cell] = check(known[name], cell)
    return found


def cells(name: str, kind: type, chosen: Mapping[str, Sequence[str]] = {}) -> Iterator[Cell]:
    """Return the cells of an algorithm with a class of privacy objects."""
    names = _names(kind)
    axes = {
        "unit": (*(UNITS if "unit" in names else (NAMES_OF_UNITS[Terms.unit],)), NONE),
        "trust": tuple(TRUST) if "trust" in names else (kind.trust,),  # type: ignore[attr-defined]
        "noise": NOISES if _noise_setting(kind) else (INDEPENDENT,),
        "records": tuple(_records(kind)),
        "participation": tuple(SCHEMES),
        "clip": (FIXED, ADAPTIVE) if _adaptive_setting(kind) else (FIXED,),
        "encoder": (NONE, "quantiser") if "encoder" in names else (NONE,),
        "relation": tuple(RELATIONS) if "relation" in names else (Terms.relation,),
    }
    axes |= {column: tuple(one for one in axes[column] if one in values) for column, values in chosen.items()}
    for values in product(*axes.values()):
        yield Cell(name, kind, *values)


def protocol_of(algorithm: type, cell: Cell, **settings: Any) -> Any:
    """Return the protocol of a cell. Settings of the algorithm that have no default are 0.5, or the path "head".

    Args:
        settings: settings of the pair, such as `epsilon`. Without a target, `noise_std` is 1, or 0 with unit "none".

    Raises:
        Refusal: an object refuses the cell.
    """
    noise = {} if settings.keys() & {"mu", "epsilon", "noise_std"} else {"noise_std": float(cell.unit != NONE)}
    required = (one for one in fields(algorithm) if one.default is MISSING and one.default_factory is MISSING)
    missing = {one.name: "head" if "path" in one.metadata else 0.5 for one in required}
    return pair(algorithm(**missing), privacy=privacy_of(cell), step_size=0.1, **noise, **settings)


def privacy_of(cell: Cell) -> Any:
    """Return the privacy object of a cell. Raise Refusal if it is not valid."""
    kind, names = cell.privacy, _names(cell.privacy)
    own = {"unit": None if cell.unit == NONE else cell.unit, "trust": cell.trust, "relation": cell.relation}
    given: dict[str, Any] = {name: value for name, value in own.items() if name in names} | _records(kind)[cell.records]
    if noise := _noise_setting(kind):
        given[noise] = cell.noise
    if cell.encoder != NONE:
        given["encoder"] = ENCODERS[cell.encoder]()
    whole = _adaptive_setting(kind)
    if whole and cell.clip == ADAPTIVE:
        given[whole] = AdaptiveClip(start=0.5)
    elif whole and cell.unit == "machine":
        given[whole] = 0.5
    if "clip" in names and not ("unit" in names and cell.unit == "machine"):
        given["clip"] = 0.5
    return kind(**given)


def _names(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}  # type: ignore[arg-type]


def _noise_setting(kind: type) -> str | None:
    """Return the name of the setting of a class of privacy objects for the noise over rounds, or None."""
    return next((name for name in ("noise", "factor") if name in _names(kind)), None)


def _adaptive_setting(kind: type) -> str | None:
    """Return the name of the setting of a class of privacy objects that takes an adaptive clip, or None."""
    found = [one.name for one in fields(kind) if one.metadata.get("part") is AdaptiveClip]  # type: ignore[arg-type]
    return found[0] if found else None


def _records(kind: type) -> dict[str, dict[str, Any]]:
    """Return settings of a class of privacy objects for the records of a message, by the name of their sampler."""
    names = _names(kind)
    if "work" in names:
        return {name: {"work": work} for name, work in WORKS.items()}
    if "sampler" not in names:
        return {FRESH: {}}
    found: dict[str, dict[str, Any]] = {
        name: {"sampler": name} | ({} if name == "full" else {"batch": 1}) for name in SAMPLERS
    }
    return found | ({PUBLIC_RATE: {"sampler": "poisson", "batch": 1, "rate": RATE}} if "rate" in names else {})


def small_problem(algorithm: type | None = None) -> Problem:
    """Return the problem of the table: logistic regression on 4 machines of 12 records.

    For an algorithm with a setting that is a path, its parameters have the names "body" and "head".
    """
    return _small_problem(named=algorithm is not None and takes_paths(algorithm))


def takes_paths(algorithm: type) -> bool:
    """Return True if a setting of a class of algorithms is a path of parameters, which then need names."""
    return any("path" in one.metadata for one in fields(algorithm))


@cache
def _small_problem(*, named: bool) -> Problem:
    rows = np.random.default_rng(0).normal(size=(MACHINES, RECORDS, 3))
    rows = (rows / np.linalg.norm(rows, axis=2, keepdims=True)).astype(np.float32)
    labels = (rows[..., 0] > 0).astype(int)
    if named:
        start = {"body": np.zeros(2, np.float32), "head": np.zeros(1, np.float32)}
        table = np.arange(MACHINES * RECORDS).reshape(MACHINES, RECORDS)
        return general_problem(_split_loss, (rows.reshape(-1, 3), labels.ravel()), start=start, partition_table=table)
    return linear_problem(rows, labels, Logistic(), feature_bound=1.0, constraint=Ball(1.0))


def _split_loss(params: Any, example: Any) -> Any:
    """Return the logistic loss of an example, with its last feature at the head."""
    score = example[0][:2] @ params["body"] + example[0][2] * params["head"][0]
    return jnp.logaddexp(0.0, score * (1 - 2 * example[1]))


class _Checks(Once):
    """Outcomes of cells. Cells with equal objects and plans share one if what is read of their algorithms is equal."""

    def __call__(self, algorithm: type, cell: Cell) -> str:
        own = cell._replace(algorithm="", participation="")
        private = self.once(("privacy", own), lambda: _setting_or(lambda: privacy_of(own)))
        if isinstance(private, str):
            return private
        key = "known", algorithm, cell.privacy, cell.records
        known = self.once(key, lambda: _setting_or(lambda: self._read(algorithm, cell)))
        if isinstance(known, str):
            return known
        key = "terms", repr(known), repr(private), cell.unit == NONE, cell.participation
        terms = self.once(key, lambda: _setting_or(lambda: self._terms(algorithm, cell, known)))
        return terms if isinstance(terms, str) else _outcome(terms, cell)

    def _read(self, algorithm: type, cell: Cell) -> tuple[Any, int]:
        protocol, problem = protocol_of(algorithm, cell), small_problem(algorithm)
        plan = self._plan(protocol, cell._replace(participation="full"))
        read = protocol.rounds.read_once(problem, plan)
        return read.known, costs_of(read).message_dimension(problem)

    def _plan(self, protocol: Any, cell: Cell) -> Plan:
        sampler, scheme = protocol.minibatches, SCHEMES[cell.participation]
        key = "plan", repr(sampler), cell.participation
        return self.once(key, lambda: draw_plan(small_problem(), scheme, ROUNDS, sampler=sampler))

    def _terms(self, algorithm: type, cell: Cell, known: Any) -> Terms:
        """Return the terms that the event of a cell's protocol states."""
        problem, protocol = small_problem(algorithm), replace(protocol_of(algorithm, cell), known=known[0])
        require_trusted(protocol, SCHEMES[cell.participation] if SCHEMES[cell.participation].secret else None)
        plan = self._plan(protocol, cell)
        return event_of(protocol.rounds.fitted(problem, plan), problem, plan).terms


def _setting_or(made: Callable[[], Any]) -> Any:
    """Return a result, or the name of the setting that is refused."""
    try:
        return made()
    except Refusal as refusal:
        return refusal.setting


def _outcome(terms: Terms, cell: Cell) -> str:
    """Return "defined", or the first column in which a cell differs from the terms of its event."""
    stated = {"unit": NAMES_OF_UNITS.get(terms.unit), "trust": terms.trust, "relation": terms.relation}
    if cell.unit == NONE:
        stated["unit"] = NONE
    return next((name for name, one in stated.items() if one != getattr(cell, name)), DEFINED)


def folded(outcomes: Mapping[Cell, str]) -> list[Row]:
    """Return the outcomes of combinations (`Cell`) as a table with few rows.

    A row stands for several combinations with the same outcome.

    Args:
        outcomes: outcome of each combination, as `combinations` returns them.
    """
    forward, last = Cell._fields, Cell._fields[1:] + Cell._fields[:1]
    cells = [(_texts(cell), outcome) for cell, outcome in outcomes.items()]
    return min((_merged(cells, order) for order in (forward, forward[::-1], last)), key=len)


def _merged(cells: Sequence[tuple[tuple[str, ...], str]], order: Sequence[str]) -> list[Row]:
    """Return rows, merged along one column after another.

    A value stands for itself, and a number for a merged tuple of values.
    """
    columns, merged = Cell._fields, {}
    rows: list[tuple[tuple, str]] = list(cells)
    for column in order:
        at = columns.index(column)
        groups: dict[tuple, list] = {}
        for values, outcome in rows:
            groups.setdefault((values[:at], values[at + 1 :], outcome), []).append(values[at])
        rows = []
        for (before, after, outcome), own in groups.items():
            number = merged.setdefault(tuple(own), len(merged))
            rows.append(((*before, number, *after), outcome))
    tuples = list(merged)
    return [Row(dict(zip(columns, (tuples[one] for one in values), strict=True)), outcome) for values, outcome in rows]


def _texts(cell: Cell) -> tuple[str, ...]:
    return tuple(value.__name__ if isinstance(value, type) else value for value in cell)
