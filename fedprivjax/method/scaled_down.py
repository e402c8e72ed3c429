"""Settings that follow a federation's sizes, made small for an audit."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

BATCH = 3  # records of a message, if a protocol has more
EPOCH = 4  # batches of a machine's records


def scaled_down(protocol: Any, machines: int) -> Any:
    """Return the protocol with a small batch, and one number in place of each machine's own.

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
