"""Costs of a whole run, from the costs of a message and of a use of a record."""

from collections.abc import Mapping
from typing import Any


def totals(costs: Mapping[str, Any], messages: Any, uses: Any) -> dict[str, Any]:
    """Return `gradients_per_record` and `sent_bytes` of a whole run.

    Args:
        costs: values of `Protocol.costs`, numbers or arrays.
        messages: number of rounds in which a machine sends, a number or an array that broadcasts with the costs.
        uses: number of uses of a record by messages, likewise.

    >>> totals({"sent_bits": 320.0, "gradients_per_use": 2.0}, messages=5.0, uses=0.5)
    {'gradients_per_record': 1.0, 'sent_bytes': 200.0}
    """
    return {
        "gradients_per_record": uses * costs["gradients_per_use"],
        "sent_bytes": messages * costs["sent_bits"] / 8,
    }
