"""`[[protocol]]`: a built-in or custom method, its settings, and its own grid."""

from collections.abc import Container, Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, fields, is_dataclass
from math import isnan, prod
from typing import Any

from pydantic import Field

from fedprivjax.checks.decorated import without_decorator
from fedprivjax.checks.numbers import kinds_of_parts, numbers_of, with_numbers
from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.checks.values import NUMBERS, require_choice
from fedprivjax.experiment.names import Unimported, made, named, object_of, of_results, resolve
from fedprivjax.experiment.section import Settings, labelled, place_of, sections_with
from fedprivjax.method.algorithm import Algorithm
from fedprivjax.method.encoders import ENCODERS, Encoder
from fedprivjax.method.integer_sums import IntegerSums
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.pairing import PRIVACY_KINDS, base_of, privacy_for
from fedprivjax.method.protocol import Pair, Protocol
from fedprivjax.method.server_checks import factory_of
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.server_step import as_optimizer
from fedprivjax.method.work_privacy import WorkPrivacy
from fedprivjax.plan.arguments import require_protocol
from fedprivjax.plan.samplers.local import LocalWork
from fedprivjax.privacy.adversaries import Adversary
from fedprivjax.privacy.adversary_names import ADVERSARIES
from fedprivjax.privacy.target import TARGETS
from fedprivjax.protocols import FedAvg
from fedprivjax.protocols.registry import ALGORITHM_CLASSES, METHODS
from fedprivjax.sweeps.configurations import sweepable

KEYS = ("name", "label", "grid", "participation")  # keys of `[[protocol]]` other than the method's settings
ALGORITHM, PRIVACY = "algorithm", "privacy"  # fields of a pair
WORK = ("local_epochs", "local_steps", "batch", "sampler", "rate")  # keys of `work`, as in `fedavg`
MOMENTS = "moments"
REGISTRIES: dict[type, tuple[Mapping[str, Any], str]] = {  # objects of a file by name, and an example of their tables
    Encoder: (ENCODERS, '{ kind = "quantiser", levels = 16 }'),
    Adversary: (ADVERSARIES, '"secure-sum" or { kind = "coalition", size = 2 }'),
    Algorithm: (ALGORITHM_CLASSES, '"sgd" or { kind = "sgd", average = true }'),
}


class ProtocolSettings(Settings):
    """`[[protocol]]`: a method by name, its label, its settings, and a grid of its own.

    The name is one of `PROTOCOLS`, or one of `ALGORITHMS` with `privacy = { kind = "messages", clip = 1.6 }`, the table
    of a privacy object. Or it is "module:Name" of an `Algorithm` or `LocalAlgorithm`, from a module that is installed
    or next to the experiment file. `privacy = { kind = "module:Name" }` names a custom privacy object. A grid or a
    sweep names the numbers of both as `algorithm.beta = [0.5, 0.9]` and `privacy.clip = [0.4, 1.6]`.
    A batch "moments" is Lowy & Razaviyayn's rule K = n·√ε/(2·√R) at every swept ε.

    `server = { kind = "adam", b1 = 0.9 }`, or `server = "adam"`, is a `ServerOptimizer`: an optax optimizer or
    schedule by name, or "module:name" of a factory, a transformation or a schedule. So is `local`.
    `update_clip = { start = 0.3, quantile = 0.5 }` is an `AdaptiveClip`. A grid or a sweep names their numbers as
    `server.b1 = [0.5, 0.9]`. `encoder = { kind = "quantiser", levels = 16 }` is an `Encoder`: one of `ENCODERS`, or
    "module:Name". `adversary = "secure-sum"`, or `{ kind = "coalition", size = 2 }`, is an `Adversary`: one of
    `ADVERSARIES`, or "module:Name". `steps = "sgd"` of `gossip` is an algorithm of `ALGORITHMS`, or "module:Name".

    Attributes:
        name: name of the method or algorithm, or "module:Name".
        label: name of the protocol in tables and plots. Default: `name`.
        grid: settings that are swept for this protocol alone; the best point is shown, by `evaluation.select`.
        participation: keys of `[participation]` for this protocol alone, such as { rounds = 40 }; all but `machines`.
        settings: settings of the method, in a file keys of `[[protocol]]` itself.
        method: class of the method, for an algorithm that of its pairs.
        parts: objects made of tables such as `server`, or `algorithm` and `privacy` of a pair, by field.
        added: whether the protocol is a baseline that `[evaluation] baselines` added.
    """

    name: str
    label: str = ""
    grid: dict[str, list[float]] = {}
    participation: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    method: Any = Field(default=None, exclude=True, repr=False)
    parts: dict[str, Any] = Field(default={}, exclude=True, repr=False)
    added: bool = Field(default=False, exclude=True, repr=False)

    @classmethod
    def prepared(cls, raw: Mapping[str, Any], context: Any) -> Any:
        if not isinstance(raw.get("name"), str):
            return {"label": "", **{key: raw[key] for key in raw if key == "name"}}  # nothing else can be checked
        name = raw["name"]
        if of_results(context):
            return {**_split(raw), "method": Unimported(name)}
        method = resolve("protocol", name, METHODS | ALGORITHM_CLASSES, context)
        if isinstance(method, type) and privacy_for(method):
            with within(place_of(labelled(raw))):
                return _pair_fields(raw, method, context)
        if not (isinstance(method, type) and issubclass(method, Protocol) and is_dataclass(method)) or method is Pair:
            raise Refusal(f"protocol {name!r} must be an Algorithm or a LocalAlgorithm, got {method!r}")
        with within(place_of(labelled(raw))):
            return _fields(raw, method, context)

    @property
    def place(self) -> str:
        """Name of the table in messages."""
        return place_of(self.label)

    def within(self, experiment: Any) -> AbstractContextManager[None]:
        """Prefix a Refusal's message with the section that gives the setting: by default this table."""
        own = {*self.fixed, *self.grid, *self.participation}

        def place(refusal: Refusal) -> str:
            key = {"eval_every": "every", "metric": "metrics"}.get(refusal.setting, refusal.setting)
            for name in ("sweep", "evaluation", "participation"):
                section = getattr(experiment, name)
                keys = section.model_fields_set | getattr(section, "over", {}).keys()
                if key in keys and key not in own:
                    return f"[{name}] for {self.label!r}"
            return self.place

        return within(place)

    @property
    def points(self) -> int:
        """Number of points of the protocol's own grid, 1 without a grid."""
        return prod(len(values) for values in self.grid.values())

    @property
    def sweepable(self) -> tuple[str, ...]:
        """Names of the settings that can be swept for this protocol."""
        return sweepable(self.method, of_parts=numbers_of(self.parts))

    def axes(self, over: Mapping[str, list[float]]) -> dict[str, list[float]]:
        """Return the swept settings of this protocol: those of a sweep that this table does not fix, and its grid."""
        return {**{name: values for name, values in over.items() if name not in self.fixed}, **self.grid}

    def make(self, values: Mapping[str, Any]) -> Any:
        """Return the protocol with further settings. Dotted names ("server.b1") are numbers of its parts."""
        own = {name: value for name, value in values.items() if "." not in name}
        of_parts = {name: value for name, value in values.items() if name not in own}
        return with_numbers(self.method(**{**self.settings, **self.parts, **own}), of_parts)

    @property
    def fixed(self) -> set[str]:
        """Names of the settings that this table fixes, so that a sweep does not apply. One privacy target fixes all."""
        targets = set(TARGETS) if set(TARGETS) & set(self.settings) else set()
        return {*self.settings, *flattened(self.settings), *targets}

    @property
    def required(self) -> set[str]:
        """Names of required settings that this table does not set. A sweep must give them."""
        if isinstance(self.method, Unimported):
            self.method()
        bare = {f.name for f in fields(self.method) if f.init and f.default is MISSING and f.default_factory is MISSING}
        of_parts = {
            f"{part}.{name}"
            for part in (ALGORITHM, PRIVACY)
            if part in self.parts
            for name in _without_value(self.parts[part], self.settings[part])
        }
        return of_parts | (bare - self.settings.keys())

    def check_values(self, over: Mapping[str, list[float]]) -> None:
        """Make the protocol at every swept value, so that invalid values raise before anything runs."""
        axes = self.axes(over)
        first = {name: values[0] for name, values in axes.items()}
        for name in self.required - axes.keys():
            raise Refusal(f"{name} must be given there, or swept")
        self.at(first)
        for name, value in [(name, value) for name, values in axes.items() for value in values]:
            self.at({**first, name: value})

    def has_target(self, over: Mapping[str, list[float]]) -> bool:
        """Return True if the settings, the grid, the sweep or the method's defaults give a privacy target."""
        if {*self.settings, *self.grid, *over} & set(TARGETS):
            return True
        made = self.at({name: values[0] for name, values in self.axes(over).items()})
        return any(getattr(made, name) is not None for name in TARGETS)

    def at(self, point: Mapping[str, float], batch: int = 1) -> Any:
        """Return the protocol at a point of the sweep, for validation and audits.

        A target in another unit is left out; it is converted later.

        Args:
            batch: batch that replaces one which depends on ε.
        """
        fixed = {"batch": batch} if self.settings.get("batch") == MOMENTS else {}
        names = [*_names_of(self.method), *numbers_of(self.parts)]
        made = self.make({**fixed, **{name: point[name] for name in point if name in names}})
        require_protocol(made)
        return made


def flattened(axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axes with nested tables as dotted names. TOML reads `server.b1 = [0.5, 0.9]` as a table.

    >>> flattened({"mu": [1.0], "server": {"b1": [0.5, 0.9]}})
    {'mu': [1.0], 'server.b1': [0.5, 0.9]}
    """
    flat = {}
    for name, value in axes.items():
        if isinstance(value, Mapping) and value:
            flat |= {f"{name}.{key}": one for key, one in flattened(value).items()}
        else:
            flat[name] = value
    return flat


def _part(field: str, kind: Any, given: Any, context: Mapping[str, Any] | None) -> Any:
    """Return the object of class `kind` that a table, or for an optimizer a name alone, describes."""
    for base, (known, example) in REGISTRIES.items():
        if issubclass(kind, base):
            custom = isinstance(given, Mapping) and ":" in str(given.get("kind"))
            if base is Adversary and not custom and isinstance(given, Mapping) and "server" in given:
                given = {**given, "server": _part(f"{field}.server", kind, given["server"], context)}
            wanted = f"{field} must name its kind, such as {example}"
            return object_of(base.kind, given, known, base, context, wanted)  # type: ignore[attr-defined]
    if not issubclass(kind, ServerOptimizer):
        return kind(**given) if isinstance(given, Mapping) else given
    path, settings = named(given, f'{field} must name its kind, such as {{ kind = "adam", b1 = 0.9 }}')
    factory = resolve("optimiser", path, {}, context) if ":" in path else factory_of(path)
    return kind(factory, **settings) if settings else as_optimizer(field, factory)


def _parts(kinds: Mapping[str, Any], settings: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Return the objects of the parts that settings have, by name. `kinds` are the classes of all parts."""
    return {name: _part(name, kind, settings[name], context) for name, kind in kinds.items() if name in settings}


def _split(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `[[protocol]]` table, with the method's settings under "settings"."""
    kept: dict[str, Any] = {"label": labelled(raw)} | {key: raw[key] for key in KEYS if key in raw}
    if isinstance(kept.get("grid"), Mapping):
        kept["grid"] = flattened(kept["grid"])
    return {**kept, "settings": {key: value for key, value in raw.items() if key not in kept}}


def _fields(raw: Mapping[str, Any], method: Any, context: Any) -> dict[str, Any]:
    """Return the fields of `ProtocolSettings` from a table whose name stands for `method`."""
    kept = _split(raw)
    settings = kept["settings"]
    _check_keys(settings, _names_of(method))
    return {**kept, "method": method, "parts": _parts(kinds_of_parts(method), settings, context)}


def _pair_fields(raw: Mapping[str, Any], algorithm: type, context: Any) -> dict[str, Any]:
    """Return the fields of `ProtocolSettings` from a table whose name stands for an algorithm.

    A setting of the algorithm that has the name of another key is a key of the table `algorithm` only.
    """
    if "__dataclass_fields__" not in vars(algorithm):
        raise without_decorator(algorithm)
    kept, of_pair = _split(raw), _names_of(Pair)
    own = [name for name in _names_of(algorithm) if name not in (*KEYS, *of_pair)]
    _check_keys(kept["settings"], [*own, *of_pair])
    settings = _of_pair(algorithm, kept["settings"], own)
    table = settings[ALGORITHM]
    given = _without_value(algorithm, table) | table | _parts(kinds_of_parts(algorithm), table, context)
    parts = {
        ALGORITHM: made("algorithm", raw["name"], algorithm, given, algorithm),
        PRIVACY: _private(algorithm, settings[PRIVACY], context),
        **_parts({"adversary": Adversary}, settings, context),
    }
    Protocol(**parts)  # refused if they do not go together
    return {**kept, "settings": settings, "method": Pair, "parts": parts}


def _of_pair(algorithm: type, settings: Mapping[str, Any], own: list[str]) -> dict[str, Any]:
    """Return the settings of a pair, with those of the algorithm in one table.

    Args:
        own: names of settings of the algorithm next to those of the pair.

    Raises:
        Refusal: a table is missing, or a number of the algorithm is none.
    """
    if not isinstance(settings.get(PRIVACY), Mapping):
        known = " or ".join(map(repr, _kinds_for(algorithm)))
        raise Refusal(
            f"privacy must be a table for the algorithm {algorithm.__name__}, with kind {known}, got "
            f"{settings.get(PRIVACY)!r}"
        )
    if not isinstance(settings.get(ALGORITHM, {}), Mapping):
        raise Refusal(f"algorithm must be a table of settings, got {settings[ALGORITHM]!r}")
    table = {**settings.get(ALGORITHM, {}), **{key: settings[key] for key in settings if key in own}}
    _require_numbers(algorithm, table, ALGORITHM)
    return {key: value for key, value in settings.items() if key not in own} | {ALGORITHM: table}


def _require_numbers(kind: Any, table: Mapping[str, Any], place: str) -> None:
    """Raise Refusal unless the values of all settings of a custom class that can be swept are numbers."""
    for one in fields(kind):
        if one.name not in table or not one.metadata.get("pytree_node", True) or "part" in one.metadata:
            continue
        value = table[one.name]
        several = isinstance(value, list) and one.metadata.get("several")
        if not all(map(_is_number, value if several else [value])):
            raise Refusal(
                f"{one.name} must be a number, got {value!r}. Put several into grid, as {place}.{one.name}, and "
                f"declare a setting that is not a number as struct.field(pytree_node=False)"
            )


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and not isnan(value)


def _without_value(kind: Any, given: Container[str]) -> dict[str, None]:
    """Return the numbers of a class that have neither a default nor a value in a table, by name. A sweep gives them."""
    numbers = (one for one in fields(kind) if one.metadata.get("pytree_node", True) and one.name not in given)
    return {one.name: None for one in numbers if one.default is MISSING and one.default_factory is MISSING}


def _private(algorithm: type, table: Mapping[str, Any], context: Any) -> Any:
    """Return the privacy object that a table describes."""
    path, given = str(table.get("kind")), {key: value for key, value in table.items() if key != "kind"}
    kind, base = resolve(PRIVACY, path, _kinds_for(algorithm), context), base_of(algorithm)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        needed = f"a subclass of {base.__name__} for the algorithm {algorithm.__name__}"
        raise Refusal(f"privacy {path!r} must be {needed}, got {kind!r}")
    if "__dataclass_fields__" not in vars(kind):
        raise without_decorator(kind)
    if kind not in PRIVACY_KINDS.values():
        _require_numbers(kind, given, PRIVACY)
    if issubclass(kind, WorkPrivacy) and ("work" in given or kind in (LocalPrivacy, IntegerSums)):
        given["work"] = _work(given.get("work"))
    encoder = {"encoder": Encoder} if issubclass(kind, WorkPrivacy) else {}
    parts = _parts(kinds_of_parts(kind) | encoder, given, context)
    return made(PRIVACY, path, kind, {**_without_value(kind, given), **given, **parts}, kind)


def _kinds_for(algorithm: type) -> dict[str, type]:
    """Return the classes of privacy objects that an algorithm can have, by kind."""
    known = privacy_for(algorithm)
    return {kind: one for kind, one in PRIVACY_KINDS.items() if one in known}


def _work(table: Any) -> LocalWork:
    """Return the sampler of local steps that a table describes."""
    if not isinstance(table, Mapping):
        raise Refusal(f"work of privacy must be a table, such as {{ local_epochs = 1, batch = 10 }}, got {table!r}")
    for key in table:
        require_choice("key of work", key, WORK)
    return FedAvg(**table, noise_std=0.0).work


def _names_of(kind: Any) -> list[str]:
    """Return the names of the settings of a method, an algorithm or a privacy object."""
    return [one.name for one in fields(kind) if one.init and not one.metadata.get("derived")]


def _check_keys(settings: Mapping[str, Any], names: list[str]) -> None:
    """Raise Refusal if a key is none of a method's `names`."""
    from fedprivjax.experiment.settings import Experiment  # which imports this module

    for key, value in settings.items():
        if key in NUMBERS and isinstance(value, list):
            raise Refusal(f"{key} must be one number, got {value}. Put several into [sweep] {key}")
        sections = [] if key in names else sections_with(key, Experiment)
        if 1 <= len(sections) <= 2:
            own = f". Or write participation = {{ {key} = {value} }}" * (key in ("rounds", "per_round"))
            raise Refusal(f"{key} must be in {' or '.join(sections)}, got it here{own}")
        require_choice("key", key, [*KEYS, *names])
