"""Scaled-down settings for audits: those that depend on a federation's sizes."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

BATCH = 3  # largest number of records in a message
EPOCH = 4  # batches that a machine's records make up


def scaled_down(protocol: Any, machines: int) -> Any:
    """Return the protocol with a small batch and, instead of per-machine values of ε and δ, their minimum.

    >>> from fedprivjax import NoisyMinibatchSGD
    >>> scaled_down(NoisyMinibatchSGD(epsilon=(1.0, 2.0), batch=600, sampler="poisson"), 4).batch
    3
    """
    own = {field.name: getattr(protocol, field.name) for field in fields(protocol) if field.init}
    changes: dict[str, Any] = {}
    for name in ("epsilon", "delta"):
        if isinstance(own.get(name), tuple):
            changes[name] = type(own[name][0])(np.min(own[name]))
    if own.get("relative_privacy") is not None:
        changes["relative_privacy"] = tuple(np.quantile(own["relative_privacy"], np.linspace(1, 0, machines)).tolist())
    batch = own.get("batch")
    if batch is not None:
        changes["batch"] = min(int(np.max(batch)), BATCH)
    return replace(protocol, **changes)
