"""Custom client-level DP-FedAvg: clipped updates, and noise in their mean from a trusted server; states ε only."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax import Assumption, Event, Grouped, Protocol, Terms, WorkPrivacy, noise
from fedprivjax.plan.samplers import Disjoint
from fedprivjax.privacy import gdp
from fedprivjax.protocols.fedavg import LocalGradientSteps

UNIT = "all records of one machine"


@dataclass(frozen=True)
class Composed(Event):
    """Gaussian means of clipped updates, composed over the rounds in which a machine takes part."""

    noise_std: float
    sensitivity: float
    rounds: np.ndarray
    terms: Terms

    def epsilons(self, delta):
        with np.errstate(divide="ignore", invalid="ignore"):
            mus = np.where(self.rounds > 0, np.sqrt(self.rounds) * self.sensitivity / np.float64(self.noise_std), 0.0)
        return Grouped.of(gdp.epsilon(mus, delta))


@struct.dataclass(kw_only=True)
class ClippedUpdates(WorkPrivacy):
    """Machines clip their update. The server adds N(0, noise_std²) to the mean."""

    update_clip: Any = 0.5
    trust: str = struct.field(pytree_node=False, default="server")
    work: Any = struct.field(pytree_node=False, default=Disjoint(3))

    unit, at_machines, several_epochs = "machine", False, True

    def bounded(self, message, public):
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(message)))
        short = jnp.minimum(1.0, self.update_clip / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(norm), short * leaf, 0.0), message), {"norm": norm}

    def divisor(self, weight, inputs):
        return inputs.divisor

    def read(self, total, divisor, noise, public, facts):
        mean = jax.tree.map(lambda leaf: leaf / divisor, total)
        return mean if noise is None else jax.tree.map(jnp.add, mean, ravel_pytree(mean)[1](noise)), public

    def mechanism(self, facts, method):
        return noise.Fresh(np.ones(facts.plan.size.rounds, np.float32))

    def moved(self, plan):
        """Return the change of a round's mean by one machine."""
        return 2 * float(self.update_clip) / plan.schedule.divisor

    def event(self, facts, noise_std):
        public = Assumption("public participation"), Assumption("stated", {"text": "updates are clipped as a whole"})
        terms = Terms(self.trust, "the Gaussian mechanism on a round's mean; composition", public, unit=UNIT)
        return Composed(noise_std, self.moved(facts.plan), facts.plan.schedule.total, terms)


def dp_fedavg(privacy=ClippedUpdates, step_size=0.3, epsilon=None, noise_std=None, **settings):
    """Return DP-FedAvg with a class of privacy objects, their settings, and a target or the noise."""
    target = {"epsilon": epsilon, "noise_std": noise_std, "step_size": step_size}
    return Protocol(LocalGradientSteps(), privacy=privacy(**settings), **target)
