"""Which way of producing the machines' noise: all are exact in law, so cost decides."""

import jax.numpy as jnp
import numpy as np

from fedprivjax.checks import require_choice
from fedprivjax.noise.cancelling import Cancelling, CancellingInputs
from fedprivjax.noise.gaussian import Fresh, PerMachine, mean_of_fresh
from fedprivjax.participation import Schedule

METHODS = {
    "auto": "the cheapest that is exact in law",
    "materialised": "every machine's noise written out, as messages carry it",
    "aggregate": "one draw of the participants' mean; only where all noise in the aggregate is fresh",
}


def choose(schedule: Schedule, relative: np.ndarray, method: str = "auto", *, cancel: bool, accumulate: bool = False):
    """The noise of machines that each add their own, `relative` [rounds, per_round], to what they send.

    Args:
        cancel: a machine takes back its last noise, and the aggregate is a running sum.
        accumulate: nothing is taken back and the aggregate is a running sum.

    >>> from fedprivjax import Full
    >>> everyone = Full(3).draw(2, np.random.default_rng(0))
    >>> type(choose(everyone, np.ones((2, 3)), cancel=True)).__name__
    'Fresh'
    """
    require_choice("noise method", method, METHODS)
    all_fresh = not cancel or schedule.size.per_round == schedule.size.machines
    if method == "aggregate" and not all_fresh:
        raise ValueError("noise method 'aggregate' must have full participation or no cancellation")
    if all_fresh and method != "materialised":
        return Fresh(jnp.asarray(mean_of_fresh(relative), jnp.float32), accumulate)
    relative_f32 = jnp.asarray(relative, jnp.float32)
    if not cancel:
        return PerMachine(relative_f32, accumulate)
    return Cancelling(CancellingInputs(relative_f32, jnp.asarray(schedule.participants)), schedule.machines)
