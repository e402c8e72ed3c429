"""Samplers: methods of choosing the records of a machine's message from its own records."""

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.plan.samplers.epochs import Cyclic, Disjoint, Epochs, Full, OnePassPool, Reshuffled
from fedprivjax.plan.samplers.interface import Batch, Occurrences, Sampler
from fedprivjax.plan.samplers.local import LocalEpochs, LocalSteps, LocalWork
from fedprivjax.plan.samplers.subsampling import Poisson, Replacement, Subset

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
]

SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind for kind in (Replacement, Subset, Poisson, Disjoint, Full, Cyclic, Reshuffled)
}


def as_sampler(sampler: Sampler | str, batch: Batch = None) -> Sampler:
    """Return the sampler with this name and batch. A sampler object is returned unchanged.

    Raises:
        ValueError: if the name is unknown, or if a batch is given together with a sampler object.

    >>> as_sampler("subset", 10)
    Subset(batch=10)
    >>> as_sampler(Poisson(3))
    Poisson(batch=3)
    """
    if isinstance(sampler, str):
        require_choice("sampler", sampler, SAMPLERS)
        return SAMPLERS[sampler].of(batch)
    if batch is not None:
        raise Refusal(f"batch must be left out with the sampler {sampler}, got {batch}")
    require_decorated(sampler)
    return sampler
