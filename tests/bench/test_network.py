"""The round by hand that a network's run is timed beside goes where the run goes."""

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.bench import clients
from fedprivjax.engine.simulate import run_program
from fedprivjax.noise import Silent


def test_the_round_by_hand_is_the_engines(monkeypatch):
    for name, value in {
        "NETWORK_MACHINES": 6,
        "NETWORK_COHORT": 3,
        "SIDE": 5,
        "NETWORK_HIDDEN": (4,),
        "CLIP": 0.5,
    }.items():
        monkeypatch.setattr(clients, name, value)
    start = clients.make_network.__wrapped__(4)
    ours = run_program(start.arguments._replace(mechanism=Silent()), start.static)[0]
    step, samples = jnp.float32(start.protocol.step_size), jnp.asarray(start.plan.samples)
    theirs = clients.network_by_hand(start.problem.start, start.problem.pool, samples, step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    assert not np.allclose(ours["Dense_0"]["kernel"], start.problem.start["Dense_0"]["kernel"], atol=1e-4)
