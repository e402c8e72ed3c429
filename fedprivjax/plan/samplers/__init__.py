"""Samplers: how a machine picks, out of its own records, those of a message."""

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.plan.samplers.epochs import Cyclic, Epochs, Reshuffled, epoch_places, places_in_order
from fedprivjax.plan.samplers.fixed import Dealt, Disjoint, Full
from fedprivjax.plan.samplers.interface import Batch, Occurrences, Sampler, require_records
from fedprivjax.plan.samplers.subsampling import Poisson, Replacement, Subset

__all__ = [
    "SAMPLERS",
    "Batch",
    "Cyclic",
    "Dealt",
    "Disjoint",
    "Epochs",
    "Full",
    "Occurrences",
    "Poisson",
    "Replacement",
    "Reshuffled",
    "Sampler",
    "Subset",
    "as_sampler",
    "epoch_places",
    "places_in_order",
    "require_records",
]

SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind for kind in (Replacement, Subset, Poisson, Disjoint, Full, Cyclic, Reshuffled)
}


def as_sampler(sampler: Sampler | str, batch: Batch = None) -> Sampler:
    """A sampler by its name and batch; one that is there already comes back.

    Raises:
        ValueError: an unknown name, or a batch beside a sampler that has its own.

    >>> as_sampler("subset", 10)
    Subset(batch=10)
    >>> as_sampler(Poisson(3))
    Poisson(batch=3)
    """
    if isinstance(sampler, str):
        require_choice("sampler", sampler, SAMPLERS)
        return SAMPLERS[sampler].of(batch)
    if batch is not None:
        raise Refusal(f"batch must be left out beside {sampler}, got {batch}")
    require_decorated(sampler)
    return sampler
