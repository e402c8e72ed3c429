"""Custom SCAFFOLD (Karimireddy et al. 2020, option II), which declares itself non-private."""

from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax import GaussianEvent, Grouped, Problem, Protocol, Terms
from fedprivjax.plan.samplers import Disjoint


class State(NamedTuple):
    """The point, the server's control variate, and every machine's, leaves [machines, ...]."""

    w: Any
    control: Any
    own: Any


@struct.dataclass
class Scaffold(Protocol):
    """Machines take K local steps, corrected by c − c_i."""

    noise_std: Any = 0.0
    step_size: Any = 0.3
    batch: int = struct.field(pytree_node=False, default=3)
    several_epochs = True

    @property
    def minibatches(self):
        return Disjoint(self.batch)

    def init(self, problem: Problem, size, key):
        zero = jax.tree.map(jnp.zeros_like, problem.start)
        own = jax.tree.map(lambda leaf: jnp.zeros((size.machines, *leaf.shape)), problem.start)
        return State(problem.start, zero, own)

    def walk(self, problem, state, examples, own):
        """Return one machine's update and the change of its control variate."""

        def step(w, example):
            (g,) = problem.model.gradients((w,), example)
            moved = jax.tree.map(lambda g, c, i: g + c - i, g.written_out(), state.control, own)
            return jax.tree.map(lambda w, g: w - self.step_size * g, w, moved), None

        end = jax.lax.scan(step, state.w, examples)[0]
        steps = self.batch * self.step_size
        change = jax.tree.map(lambda w, v, c: (w - v) / steps - c, state.w, end, state.control)
        return jax.tree.map(jnp.subtract, end, state.w), change

    def filled(self, inputs):
        """Return 1 for filled slots and 0 for empty slots, [per_round]."""
        return inputs.filled

    def round(self, problem, state, inputs, noise, key):
        filled = self.filled(inputs)
        own = jax.tree.map(lambda leaf: leaf[inputs.machine], state.own)
        examples = problem.take(inputs.samples, inputs.machine)
        moved, change = jax.vmap(lambda examples, own: self.walk(problem, state, examples, own))(examples, own)
        moved, change = (
            jax.tree.map(lambda leaf: leaf * filled.reshape(-1, *[1] * (leaf.ndim - 1)), rows)
            for rows in (moved, change)
        )
        machines = jax.tree.leaves(state.own)[0].shape[0]
        w = jax.tree.map(lambda w, d: w + jnp.sum(d, axis=0) / jnp.sum(filled), state.w, moved)
        control = jax.tree.map(lambda c, d: c + jnp.sum(d, axis=0) / machines, state.control, change)
        everyone = jax.tree.map(lambda leaf, d: leaf.at[inputs.machine].add(d), state.own, change)
        return State(problem.constraint.project(w), control, everyone), {}

    def output(self, state):
        return state.w

    def event(self, problem, plan):
        return GaussianEvent(0.0, inf, Grouped.of(plan.schedule.total > 0), Terms("none", "none"))
