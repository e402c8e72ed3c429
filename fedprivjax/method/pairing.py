"""Which privacy objects go with which algorithms."""

from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called
from fedprivjax.method.algorithm import Algorithm, has_sums
from fedprivjax.method.gossip import Gossip
from fedprivjax.method.integer_sums import IntegerSums
from fedprivjax.method.local_algorithm import LocalAlgorithm
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.noisy_momentum import NoisyMomentum
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.private_mean import GaussianMean
from fedprivjax.method.record_steps import NoisyRecordSteps
from fedprivjax.method.release import MessagePrivacy, Privacy
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.method.work_privacy import WorkPrivacy

PRIVACY_KINDS: dict[str, type[Privacy]] = {  # by name in experiment files
    "messages": NoisyMessages,
    "records": NoisyRecords,
    "momentum": NoisyMomentum,
    "mean": GaussianMean,
    "bits": BitMean,
    "local": LocalPrivacy,
    "steps": NoisyRecordSteps,
    "integers": IntegerSums,
}


def privacy_for(algorithm: type) -> tuple[type, ...]:
    """Return the package's classes of privacy objects with which a class of algorithms goes; () for another class."""
    if issubclass(algorithm, LocalAlgorithm):
        return LocalPrivacy, NoisyRecordSteps, IntegerSums
    if not issubclass(algorithm, Algorithm):
        return ()
    if issubclass(algorithm, Gossip):
        return NoisyMessages, NoisyRecords
    return NoisyMessages, NoisyRecords, NoisyMomentum, GaussianMean, BitMean


def base_of(algorithm: type) -> type[Privacy]:
    """Return the base class of the privacy objects of a class of algorithms."""
    return MessagePrivacy if issubclass(algorithm, Algorithm) else WorkPrivacy


def other_privacy(algorithm: Any, privacy: Any) -> Refusal:
    """Return the Refusal for a privacy object that does not go with an algorithm."""
    names = [one.__name__ for one in privacy_for(type(algorithm))]
    names = " or ".join(f"an {name}" if name[0] == "I" else f"a {name}" for name in names)
    return Refusal(f"privacy must be {names} with {type(algorithm).__name__}, got {called(privacy)}")


def is_custom(kind: type, algorithm: type) -> bool:
    """Return True for a custom class whose only parents in the package are the base for an algorithm, and its bases."""
    base = base_of(algorithm)
    if kind is base or not issubclass(kind, base) or algorithm is Gossip:
        return False
    if issubclass(algorithm, Algorithm) and has_sums(algorithm):
        return False
    return all(issubclass(base, one) for one in kind.__mro__ if of_package(one))
