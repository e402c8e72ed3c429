"""Reference runs of every method, by method and case, and their arrays.

The data are small, and variants change a method's mathematics. Arrays of a run are inputs, noise, messages and states
of every round, from the run's transcript.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.engine.prepare import Arguments, ReadyRun, ready
from fedprivjax.engine.transcript import flat_steps, of_present, replay_round, replay_rounds, require_noisy_messages
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.method.encoders import Quantiser
from fedprivjax.method.gossip_rounds import GossipRounds
from fedprivjax.method.local_rounds import ClientState
from fedprivjax.method.mean_rounds import ServerAndMemory
from fedprivjax.method.round import flat_rows
from fedprivjax.method.seen import costs_of, seen_of
from fedprivjax.method.server_optimizer import ServerOptimizer
from fedprivjax.method.work_program import ServedState
from fedprivjax.noise.graphs import Torus
from fedprivjax.noise.mixing import Matchings, Mixing
from fedprivjax.noise.pairwise import Pairwise
from fedprivjax.plan.participation import Buffered, Dropouts, Full, Participation, Uniform
from fedprivjax.plan.schedule import Size
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.losses import Softmax
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit

MACHINES, PER_ROUND, RECORDS, FEATURES, CLASSES, ROUNDS = 6, 3, 8, 5, 3, 8
RADIUS, DELTA, SEED = 1.0, 1e-5, 11
PARTIAL, FULL = Uniform(MACHINES, PER_ROUND), Full(MACHINES)
POOL, OWN, UNEQUAL = "pool", "machines", "unequal"
NUMBERS = {"noise_std": 0.4, "step_size": 0.1}
RANDOM_SIZE = Dropouts(PARTIAL, 0.3)
ADAM = ServerOptimizer("adam", b1=0.8, b2=0.9)
SOFT_ADAM = ServerOptimizer("adam", b1=0.8, b2=0.9, eps=0.1)  # a smaller eps enlarges what processors round differently
INCREMENTS = {"noise_std": 0.5, "step_size": 0.1, "clip": 0.6}
TRUSTED = {**INCREMENTS, "noise_std": 0.3, "trust": "server"}
CLIPPED = {**NUMBERS, "clip": 0.6}
SUBSET = {**CLIPPED, "batch": 3, "sampler": "subset"}
SINGLE = {**SUBSET, "batch": 1}
LOCAL_SGD = {**CLIPPED, "batch": 3, "noise_std": 0.2}
NOWHERE = -1  # machine of an empty slot, record that is not used


@dataclass(frozen=True)
class Case:
    """One reference run.

    Attributes:
        settings: settings of the method, noise and step size included.
        participation: participation scheme.
        data: "pool" for records that all machines share, "machines" for 8 records of each machine, "unequal" for
            unequal numbers of records.
        given: recorded quantities that contain random choices without an array of their own. A checker passes them to
            an implementation instead of comparing them.
        rounds: number of rounds.
        noise: False for the same run without noise.
        silent: True to record the run without noise, too.
    """

    settings: Mapping[str, Any]
    participation: Participation = PARTIAL
    data: str = POOL
    given: tuple[str, ...] = ()
    rounds: int = ROUNDS
    noise: bool = True
    silent: bool = False

    def ready(self, method: type) -> ReadyRun:
        """Return the prepared run of a method, with noise that is sampled for every message."""
        quiet = {"noise_std": 0.0} if "noise_std" in self.settings and not self.noise else {}
        options = {"rounds": self.rounds, "seed": SEED, "delta": DELTA, "metrics": (), "noise_method": "materialised"}
        return ready(method(**{**self.settings, **quiet}), problem(self.data), self.participation, **options)


@cache
def problem(data: str) -> Problem:
    """Return softmax regression on a ball, with 48 records of 5 features and 3 classes."""
    features, labels = records()
    rows = partition(data)
    owned = {} if rows is None else {"partition_table": rows}
    return linear_problem(features, labels, Softmax(CLASSES), feature_bound=1.0, constraint=Ball(RADIUS), **owned)


def partition(data: str) -> Any:
    """Return the partition table of a reference run: the indices of the records of each machine.

    Other implementations can be compared with the recorded arrays of reference runs.

    Args:
        data: "pool" if machines (clients) share all records, "machines" if each machine has 8 records, or "unequal" if
            machines have 3 to 8 records.

    Returns:
        Indices of the records, int [machines, 8]. A row with fewer than 8 records is padded with −1. For "pool", the
        result is None.
    """
    if data == POOL:
        return None
    rows = np.arange(MACHINES * RECORDS).reshape(MACHINES, RECORDS)
    if data == OWN:
        return rows
    most = np.arange(MACHINES) + 3  # 3 to 8 records
    return np.where(np.arange(RECORDS) < most[:, None], rows, -1)


@cache
def records() -> tuple[np.ndarray, np.ndarray]:
    """Return features, float32 [48, 5] of norm at most 1, and labels, int32 [48]."""
    rng = np.random.default_rng(SEED)
    count = MACHINES * RECORDS
    features = rng.normal(size=(count, FEATURES))
    features *= rng.uniform(0.6, 1.0, (count, 1)) / np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.argmax(features @ rng.normal(size=(FEATURES, CLASSES)) + rng.gumbel(size=(count, CLASSES)) / 4, axis=1)
    return features.astype(np.float32), labels.astype(np.int32)


def with_silent(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the cases, and those that are `silent` also without noise, by name."""
    silent = {
        f"{name}-no-noise": replace(case, noise=False, silent=False) for name, case in cases.items() if case.silent
    }
    return {**cases, **silent}


# methods with local steps whose noise protects a record or a machine
PASSES = {"local_epochs": 2, "batch": 2, "step_size": 0.3}
STEPS = {"local_steps": 3, "batch": 3, "step_size": 0.3}
OF_RECORD = {"unit": "record", "clip": 0.6, "noise_std": 0.2}
OF_MACHINE = {**PASSES, "unit": "machine", "update_clip": 0.4, "noise_std": 0.1}
LOCAL = {
    "plain": Case(PASSES, data=OWN, noise=False),
    "unequal": Case({**PASSES, "local_epochs": 1}, data=UNEQUAL, noise=False),
    "record": Case({**PASSES, **OF_RECORD}, data=OWN, silent=True),
    "poisson-steps": Case({**STEPS, **OF_RECORD, "sampler": "poisson"}, data=OWN),
    "machine": Case(OF_MACHINE, data=OWN),
    "machine-local": Case({**OF_MACHINE, "trust": "none"}, data=OWN),
    "adaptive-clip": Case({**OF_MACHINE, "update_clip": AdaptiveClip(start=0.3), "noise_std": 1.0}, data=OWN),
    "dropouts": Case(OF_MACHINE, RANDOM_SIZE, data=OWN),
    "quantised": Case({**PASSES, "encoder": Quantiser(4)}, data=OWN, noise=False, given=("messages",)),
}
USERS = {  # the sums of bits are given, because rounding is random
    "none": Case({**CLIPPED, "trust": "none"}, silent=True),
    "server": Case({**CLIPPED, "trust": "server"}),
    "pan-private": Case({**CLIPPED, "trust": "pan-private"}),
    "bits": Case({**CLIPPED, "noise_std": 3.0, "trust": "shuffler", "levels": 4}, given=("messages",)),
}
# momentum with tree noise: the reported iterate is chosen at random, so it is given
MOMENTUM = {**CLIPPED, "batch": 2, "alpha": 0.5}
REPORTED = Case(MOMENTUM, FULL, data=OWN, given=("params",))
TREES = {"server": replace(REPORTED, silent=True), "none": replace(REPORTED, settings={**MOMENTUM, "trust": "none"})}
METHODS: dict[str, Mapping[str, Case]] = {
    "dp_mu2": {
        "partial": Case(INCREMENTS, silent=True),
        "full": Case(INCREMENTS, FULL, silent=True),
        "gap": Case({**INCREMENTS, "noise_schedule": "gap"}),
        "correlated": Case({**INCREMENTS, "noise_schedule": "toeplitz"}),
        "fresh-noise": Case({**INCREMENTS, "cancel": False}),
        "dropouts": Case(INCREMENTS, RANDOM_SIZE),
        "batch": Case({**INCREMENTS, "batch": 2}),
        "no-clip": Case({"noise_std": 0.5, "step_size": 0.1}),
        "server-partial": Case(TRUSTED),
        "server-full": Case({**TRUSTED, "step_size": 0.2}, FULL),  # reaches the boundary of the ball
    },
    "noisy_sgd": {
        "partial": Case(CLIPPED, silent=True),
        "full": Case({**CLIPPED, "step_size": 0.5}, FULL),  # reaches the boundary of the ball
        "average": Case({**CLIPPED, "average": True}),
        "dropouts": Case(CLIPPED, RANDOM_SIZE),
        "batch": Case({**CLIPPED, "batch": 2}),
        "no-clip": Case(NUMBERS),
        "server": Case({**CLIPPED, "noise_std": 0.2, "trust": "server"}),
        "adam": Case({**CLIPPED, "server": ADAM}, silent=True),
    },
    "stale_momentum": {
        "partial": Case(INCREMENTS, silent=True),
        "full": Case(INCREMENTS, FULL, silent=True),
        "batch": Case({**INCREMENTS, "batch": 2}),
        "sequence": Case({**INCREMENTS, "noise_schedule": tuple(1.0 + k / 4 for k in range(ROUNDS))}),
    },
    "noisy_minibatch_sgd": {
        "subset": Case(SUBSET, data=OWN, silent=True),
        "replacement": Case({**SUBSET, "sampler": "replacement"}, data=OWN),
        "poisson": Case({**SUBSET, "sampler": "poisson"}, data=OWN),
        "full-batches": Case({**SUBSET, "sampler": "full", "batch": None}, FULL, data=UNEQUAL, silent=True),
        "disjoint": Case({**SINGLE, "sampler": "disjoint"}, data=OWN),
        "dropouts": Case(SUBSET, RANDOM_SIZE, data=OWN),
        "strongly-convex": Case({**SUBSET, "strong_convexity": 0.1}, data=OWN),
        "shuffler": Case({**SINGLE, "trust": "shuffler"}, data=OWN),
        "window": Case({**SUBSET, "window": 3}, data=OWN),
        "adam": Case({**SUBSET, "server": ADAM}, data=OWN),
    },
    "dsgd": {
        "ring": Case(SUBSET, FULL, data=OWN, silent=True),
        "torus": Case({**SUBSET, "mixing": Torus(2, 3), "sampler": "full", "batch": None}, FULL, data=UNEQUAL),
        "in-turn": Case({**SUBSET, "mixing": Mixing("ring", Matchings(3), "complete")}, FULL, data=OWN),
        "pairwise": Case({**SUBSET, "noise_schedule": Pairwise("ring", 2.0)}, FULL, data=OWN),
        "adam": Case({**SUBSET, "server": ADAM}, FULL, data=OWN),
    },
    "accelerated_minibatch_sgd": {
        "partial": Case(SUBSET, data=OWN, silent=True),
        "full": Case(SUBSET, FULL, data=OWN, silent=True),
        "poisson": Case({**SUBSET, "sampler": "poisson"}, data=OWN),
    },
    "fedavg": {
        **with_silent({**LOCAL, "adam": Case({**PASSES, "server": ADAM, "server_step": 0.1}, data=OWN, noise=False)}),
        "tree": Case({**OF_MACHINE, "local_epochs": 1, "noise_schedule": "tree"}, data=OWN),
        "late": Case(OF_MACHINE, Buffered(MACHINES, PER_ROUND, max_staleness=3), data=OWN),
    },
    "scaffold": {
        **LOCAL,
        "machine": replace(LOCAL["machine"], silent=True),
        "prox": Case({**PASSES, "prox": 0.5}, data=OWN, noise=False),
    },
    "local_sgd": {
        "partial": Case(LOCAL_SGD, data=OWN, silent=True),
        "full": Case(LOCAL_SGD, FULL, data=OWN),
        "disjoint": Case({**LOCAL_SGD, "sampler": "disjoint", "batch": 2}, data=OWN, rounds=4),
        "dropouts": Case(LOCAL_SGD, RANDOM_SIZE, data=OWN),
        "adam": Case({**LOCAL_SGD, "server": SOFT_ADAM, "server_step": 0.1}, data=OWN, silent=True),
    },
    "user_sgd": USERS,
    "user_agd": USERS,
    "tree_momentum": {
        **with_silent({**TREES, "reshuffled": replace(REPORTED, settings={**MOMENTUM, "sampler": "reshuffled"})}),
        "sensitivity-tree": replace(REPORTED, settings={**MOMENTUM, "factor": "sensitivity tree"}),
        "independent": replace(REPORTED, settings={**MOMENTUM, "factor": "independent"}),
    },
    "reduced_tree_momentum": {
        **with_silent(TREES),
        "paper-allocation": replace(REPORTED, settings={**MOMENTUM, "allocation": "paper"}),
    },
    "released_minibatch_sgd": {
        "mean": Case(SUBSET, data=OWN, silent=True),
        "sum": Case({**SUBSET, "aggregate": "sum"}, data=OWN),
        "message-clip": Case({**SUBSET, "clip_at": "message", "sampler": "replacement"}, data=OWN),
    },
    "released_local_sgd": {
        "partial": Case(LOCAL_SGD, data=OWN, silent=True),
        "full": Case(LOCAL_SGD, FULL, data=OWN),
    },
}
CASES = {method: with_silent(cases) for method, cases in METHODS.items()}


def recorded(start: ReadyRun) -> dict[str, np.ndarray]:
    """Return the arrays of a prepared run by name, those of a round with a leading axis [rounds].

    The noise must be sampled separately for every message (`noise_method="materialised"`).

    Raises:
        Refusal: if the noise of single messages is not sampled.
    """
    require_noisy_messages(start)
    arrays = jax.tree.map(np.asarray, _program(start.arguments, start.plan.size))
    return plan_arrays(start) | {name: array for name, array in arrays.items() if array.size}


def plan_arrays(start: ReadyRun) -> dict[str, np.ndarray]:
    """Return the schedule, the record indices and the first parameters of a run."""
    plan, schedule = start.plan, start.plan.schedule
    shape = (*schedule.present.shape, *[1] * (plan.samples.ndim - 2))
    used = np.broadcast_to(schedule.present.reshape(shape), plan.samples.shape)
    if plan.weights is not None:
        used = used & (np.asarray(plan.weights) != 0)
    arrays = {
        "participants": np.where(schedule.present, schedule.participants, NOWHERE).astype(np.int32),
        "records": np.where(used, plan.samples, NOWHERE).astype(np.int32),
        "start": _flat(start.problem, start.problem.start),
    }
    if schedule.dropped is not None:
        arrays["scheduled"] = np.where(schedule.scheduled, schedule.participants, NOWHERE).astype(np.int32)
    if schedule.late is not None:
        arrays |= {"staleness": schedule.late.staleness, "answer_weights": schedule.late.weights.astype(np.float32)}
    if plan.weights is not None:
        arrays["weights"] = np.where(used, plan.weights, 0).astype(np.float32)
    if isinstance(start.protocol.rounds, GossipRounds):
        weights = start.protocol.rounds.gossip.weights
        arrays["mixing"] = weights[np.arange(plan.size.rounds) % len(weights)]
    return arrays


@typed_jit(static_argnames=("size",))
def _program(arguments: Arguments, size: Size) -> dict[str, Any]:
    """Compiled program of the arrays that the rounds compute, by name."""
    protocol, problem = arguments.protocol, arguments.problem
    dimension = costs_of(protocol).message_dimension(problem)

    def one_round(carry, step):
        inputs, before = step[0], carry[0]
        carry, seen = replay_round(arguments, carry, step)
        steps = seen_of(protocol).step_noises(problem, before, inputs, seen.noise, seen.key)
        arrays = {"query": seen.query, "messages": seen.sent, "params": _flat(problem, protocol.output(seen.state))}
        if seen.steps is not None:
            arrays["local_steps"] = seen.steps
        arrays |= _noise(seen, dimension, problem.dimension)
        rows = flat_steps(problem, steps)
        if rows is not None:
            arrays["step_noise"] = of_present(inputs, rows)
        for name, point in protocol.iterates(seen.state).items():
            arrays[f"iterate.{name}"] = _flat(problem, point)
        arrays |= {f"info.{name}": value for name, value in seen.info.items()}
        return carry, arrays | _state(seen.state)

    return replay_rounds(arguments, size, one_round)[1]


def _noise(seen: Any, *dimensions: int) -> dict[str, Any]:
    """Return a round's noise: that of the messages if machines add it, otherwise that of the server."""
    whole = seen.noise if seen.own_noise is None else seen.own_noise
    named = _named("server_noise" if seen.own_noise is None else "message_noise", whole)
    return {name: leaf for name, leaf in named.items() if jnp.ndim(leaf) and leaf.shape[-1] in dimensions}


def _state(state: Any) -> dict[str, Any]:
    """Return the arrays of a state by name. A server and its memory count as one state."""
    if isinstance(state, ServerAndMemory):
        parts = [("state", state.server), ("state", state.memory)]
    elif isinstance(state, ClientState) and isinstance(state.server, ServedState):
        served = state.server
        parts = [("state.server", served.server), ("state.server.clip", served.clip), ("state.own", state.own)]
    else:
        parts = [("state", state)]
    return {name: leaf for prefix, part in parts for name, leaf in _named(prefix, part).items()}


def _named(prefix: str, tree: Any) -> dict[str, Any]:
    """Return the arrays of a pytree, by the names of fields that lead to them; keys of random numbers are left out."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(filter(None, [prefix, jax.tree_util.keystr(path, simple=True, separator=".")])): leaf
        for path, leaf in leaves
        if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    }


def _flat(problem: Problem, params: Any) -> Any:
    """Return parameters as one vector [d]."""
    return flat_rows(problem, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], params))[0]
