"""Custom algorithm with client state: every machine keeps a momentum of its bounded messages."""

from typing import Any

import jax
from flax import struct

from fedprivjax import LocalAlgorithm, LocalEpochs, LocalPrivacy, Protocol
from fedprivjax.method.local_algorithm import add, mul, sub, zeros


@struct.dataclass
class ClientMomentum(LocalAlgorithm):
    """A machine sends m ← β·m + Δ, with Δ the update of its local steps, and keeps m as it was bounded."""

    beta: Any = 0.5

    def init(self, public, step):
        return public.start

    def own(self, public):
        return zeros(public.start)

    def move(self, carry, g, received, own, work):
        return work.project(jax.tree.map(lambda v, g: v - work.step * g, carry, g))

    def leave(self, carry, received, own, work):
        return add(sub(carry, received), mul(self.beta, own))

    def keep(self, own, message, work):
        return message

    def serve(self, server, mean, at):
        return at.project(add(server, mean))

    def point(self, server):
        return server


def client_momentum(algorithm=ClientMomentum, step_size=0.1, **target):
    """Return the method with messages clipped to 0.1, a trusted server's noise, and a target or the noise."""
    privacy = LocalPrivacy(work=LocalEpochs(1, 3), unit="machine", update_clip=0.1)
    return Protocol(algorithm(), privacy=privacy, step_size=step_size, **target)
