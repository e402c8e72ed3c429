"""Any protocol, as it is audited: its own settings, but for those that speak of a federation's sizes."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from fedprivjax.auditing.neighbouring import MACHINES

BATCH = 3  # records of a message, where there are more
EPOCH = 4  # batches of a machine's records


def in_small(protocol: Any) -> Any:
    """The protocol with a small batch, one number where each machine has its own, and rates that short epochs allow.

    The privacy target, clip, noise schedule, sampler, trust model and noise rule stay as they are.

    >>> from fedprivjax import NoisyMinibatchSGD
    >>> in_small(NoisyMinibatchSGD(epsilon=(1.0, 2.0), batch=600, sampler="poisson")).batch
    3
    """
    names = {field.name for field in fields(protocol) if field.init}
    changes: dict[str, Any] = {}
    for name in names:
        value = getattr(protocol, name)
        if isinstance(value, tuple) and name in ("epsilon", "batch", "delta"):
            changes[name] = type(value[0])(np.max(value) if name == "batch" else np.min(value))
    if getattr(protocol, "relative_privacy", None) is not None:
        changes["relative_privacy"] = tuple(
            np.quantile(protocol.relative_privacy, np.linspace(1, 0, MACHINES)).tolist()
        )
    batch = changes.get("batch", getattr(protocol, "batch", None))
    if batch is not None and batch > BATCH:
        changes["batch"] = BATCH
    for name in ("alpha", "reset_rate"):
        if name in names and getattr(protocol, name) is not None:
            changes[name] = max(float(getattr(protocol, name)), 1 / EPOCH)
    for name in ("phases", "claimed_records"):
        if name in names:
            changes[name] = None
    return replace(protocol, **changes)
