"""Samplers: methods of choosing the records of a machine's message from its own records."""

from typing import Any

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_choice
from fedprivjax.plan.samplers.interface import Batch, Occurrences, Sampler
from fedprivjax.plan.samplers.local import LocalEpochs, LocalSteps, LocalWork
from fedprivjax.plan.samplers.minibatch import (
    Cyclic,
    Disjoint,
    Epochs,
    Full,
    OnePassPool,
    Poisson,
    Replacement,
    Reshuffled,
    Subset,
)

__all__ = [
    "SAMPLERS",
    "Cyclic",
    "Disjoint",
    "Epochs",
    "Full",
    "LocalEpochs",
    "LocalSteps",
    "LocalWork",
    "Occurrences",
    "OnePassPool",
    "Poisson",
    "Replacement",
    "Reshuffled",
    "Sampler",
    "Subset",
    "as_sampler",
    "require_sampler",
]

SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind for kind in (Replacement, Subset, Poisson, Disjoint, Full, Cyclic, Reshuffled)
}


def require_sampler(sampler: Any, batch: Batch = None) -> None:
    """Raise Refusal unless `sampler` is a name of `SAMPLERS` or a `Sampler`, or if it ignores a given batch."""
    if not isinstance(sampler, str | Sampler):
        raise Refusal(f"sampler must be a name, such as 'subset', or a Sampler, got {called(sampler)}")
    if isinstance(sampler, str):
        require_choice("sampler", sampler, SAMPLERS)
    if batch is not None and sampler == Full.name:
        raise Refusal(
            f"batch must be left out with sampler = 'full', which uses all records, got {batch}. "
            f"Use sampler = 'subset' for minibatches"
        )


def as_sampler(sampler: Sampler | str, batch: Batch = None, rate: float | None = None) -> Sampler:
    """Return the sampler with this name, batch and, for "poisson", public rate. An object is returned unchanged.

    Raises:
        ValueError: if the name is unknown, if a batch is given together with a sampler object, or a rate with another
            name than "poisson".

    >>> as_sampler("subset", 10)
    Subset(batch=10)
    >>> as_sampler(Poisson(3))
    Poisson(batch=3)
    """
    if rate is not None and sampler != Poisson.name:
        raise Refusal(f"rate must be left out, or given with sampler = 'poisson', got {rate} with {sampler!r}")
    require_sampler(sampler)
    if isinstance(sampler, str):
        if rate is not None:
            return Poisson(batch, rate)
        return SAMPLERS[sampler].of(batch)
    if batch is not None:
        raise Refusal(f"batch must be left out with the sampler {sampler}, got {batch}")
    require_decorated(sampler)
    return sampler
