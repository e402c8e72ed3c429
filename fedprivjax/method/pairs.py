"""Protocols of any algorithm with any privacy object, by the kind of the algorithm."""

from dataclasses import replace
from typing import Any, final

import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.decorated import derived_of, require_decorated, settings_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called, require_keywords
from fedprivjax.method.algorithm import Algorithm
from fedprivjax.method.composed import Composed, ComposedState
from fedprivjax.method.composed_sums import ComposedSums
from fedprivjax.method.composed_work import ComposedWork
from fedprivjax.method.linear import points_of
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.noisy_momentum import NoisyMomentum
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.parts import PairOf
from fedprivjax.method.private_mean import BitMean, GaussianMean
from fedprivjax.method.record_steps import NoisyRecordSteps
from fedprivjax.method.release import MessagePrivacy
from fedprivjax.method.work_privacy import WorkPrivacy


@final
@struct.dataclass
class Pair(PairOf, Composed):  # type: ignore[misc]
    """Any algorithm whose server reads means or their sum, with any privacy object of messages."""

    def broadcast(self, state: ComposedState) -> Any:
        """The points of a message other than the query, and the strength of envelopes, if any."""
        strength = self._algorithm.smoothing(state.server)
        others = points_of(self._algorithm.message(state.server, jnp.float32(1)))[1:]
        return others if strength is None else (*others, strength)


@final
@struct.dataclass
class SumsPair(PairOf, ComposedSums):  # type: ignore[misc]
    """Any algorithm whose server reads growing sums, with a `NoisyMessages`."""


@final
@struct.dataclass
class WorkPair(PairOf, ComposedWork):  # type: ignore[misc]
    """Any algorithm of local work, with a `LocalPrivacy` or a `NoisyRecordSteps`."""

    @property
    def traced(self):
        """Copy as in `Protocol.traced`, with the planned algorithm."""
        ready = super().traced
        if ready.known is None or ready.known.algorithm is None:
            return ready
        return replace(ready, algorithm=ready.known.algorithm, known=replace(ready.known, algorithm=None))


def pair_of(algorithm: type) -> tuple[Any, tuple[type, ...]] | None:
    """Return the class of pairs of an algorithm's class, and the classes of their privacy objects.

    It is None for a class of something else.
    """
    if issubclass(algorithm, LocalAlgorithm):
        return WorkPair, (LocalPrivacy, NoisyRecordSteps)
    if not issubclass(algorithm, Algorithm):
        return None
    grows = algorithm.increment is not Algorithm.increment
    return (SumsPair if grows else Pair), (NoisyMessages, NoisyRecords, NoisyMomentum, GaussianMean, BitMean)


def _custom(kind: type, made: type) -> bool:
    """Return True for a custom class whose only parents in the package are the base for these pairs, and its bases."""
    base = {Pair: MessagePrivacy, WorkPair: WorkPrivacy}.get(made)
    if base is None or kind is base or not issubclass(kind, base):
        return False
    return all(issubclass(base, one) for one in kind.__mro__ if of_package(one))


def pair(algorithm: Any = None, *, privacy: Any = None, **settings: Any) -> Composed | ComposedWork:
    """Return the protocol of an algorithm and a privacy object.

    Raises:
        Refusal: they do not go together, or a setting is unknown.
    """
    found, kind = pair_of(type(algorithm)), type(privacy)
    if found is None:
        raise Refusal(f"algorithm must be an Algorithm or a LocalAlgorithm, got {called(algorithm)}")
    require_decorated(algorithm)
    made, needed = found
    if _custom(kind, made):
        require_decorated(privacy)
    elif kind not in needed:
        names = " or a ".join(one.__name__ for one in needed)
        raise Refusal(f"privacy must be a {names} with {type(algorithm).__name__}, got {called(privacy)}")
    require_keywords("Protocol", settings, [one for one in settings_of(made) or () if one not in derived_of(made)])
    return made(algorithm, privacy=privacy, **settings)
