"""Configurations of every protocol for the contract: protocol, problem, participation and a NumPy oracle."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from oracles import isrl, optimizers, pseudocode

from fedprivjax import (
    DSGD,
    AcceleratedMinibatchSGD,
    AdaptiveClip,
    Ball,
    DPMu2,
    FedAvg,
    Full,
    Given,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    Pairwise,
    ReducedTreeMomentum,
    Scaffold,
    ServerOptimizer,
    Softmax,
    StaleMomentum,
    TreeMomentum,
    UserAGD,
    UserSGD,
    Varying,
    linear_problem,
)
from fedprivjax.protocols import ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.testing import PROPERTIES

MACHINES, PER_ROUND, ROUNDS = 4, 2, 12
SEQUENCE = tuple(1.0 + 0.2 * k for k in range(30))
EAGER = "jit equals eager"  # takes half of the contract's time, and depends on an algorithm more than on its privacy
COMPILED = tuple(name for name in PROPERTIES if name != EAGER)


class Case(NamedTuple):
    """A protocol under test.

    Attributes:
        oracle: NumPy implementation of the method, as called by its test, or None if another case covers it.
    """

    protocol: Any
    problem: Any
    participation: Any
    oracle: Any = None


def sparing(values, quick):
    """Return parameters of a test: those in `quick` run by default, the others with the slow tests."""
    assert all(value in values for value in quick)

    def parameter(value):
        given = value if isinstance(value, tuple) else (value,)
        return pytest.param(*given, marks=() if value in quick else pytest.mark.slow)

    return [parameter(value) for value in values]


def unit_rows(rng, count, features):
    rows = rng.normal(size=(count, features))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


# ---- one fresh sample per message, from a shared pool

POOL_ROUNDS = 30
RANDOM = np.array([np.random.default_rng(t).permutation(MACHINES)[:PER_ROUND] for t in range(POOL_ROUNDS)])
SOME_MACHINES = Given(MACHINES, RANDOM)


def pool_data():
    """Return features [60, 5] of unit norm and labels in 0..2 for training, and 12 more examples for testing."""
    rng = np.random.default_rng(2024)
    teacher = rng.normal(size=(5, 3))
    features = unit_rows(rng, 72, 5)
    labels = np.argmax(features @ teacher + 0.3 * rng.normal(size=(72, 3)), axis=1)
    return features[:60], labels[:60], features[60:], labels[60:]


DATA = pool_data()
POOL = linear_problem(*DATA[:2], Softmax(3), feature_bound=1.0, constraint=Ball(1.0), test=DATA[2:])
SETTINGS = {"mu": 6.0, "step_size": 0.02}
CLIPS = {"bounded": None, "clipped": 0.5}


def mu2_cases():
    oracles = {"none": pseudocode.mu2_cancelling, "server": pseudocode.mu2_partial_trusted}
    schedules = {"uniform": "uniform", "proportional": "proportional", "gap": "gap", "sequence": SEQUENCE}
    kinds = [("bounded", "uniform"), *(("clipped", schedule) for schedule in schedules)]
    for trust, (clip, schedule) in product(oracles, kinds):
        protocol = DPMu2(trust=trust, clip=CLIPS[clip], noise_schedule=schedules[schedule], **SETTINGS)
        yield f"mu2-{trust}-{clip}-{schedule}", Case(protocol, POOL, SOME_MACHINES, oracles[trust])
    for trust in oracles:
        protocol = DPMu2(trust=trust, clip=CLIPS["clipped"], noise_schedule="toeplitz", **SETTINGS)
        yield f"mu2-{trust}-clipped-toeplitz", Case(protocol, POOL, SOME_MACHINES, oracles[trust])
    for clip in CLIPS:
        protocol = DPMu2(clip=CLIPS[clip], cancel=False, **SETTINGS)
        yield f"mu2-fresh-{clip}", Case(protocol, POOL, SOME_MACHINES, pseudocode.mu2_fresh_noise)
    batched = DPMu2(clip=0.5, batch=2, **SETTINGS)
    yield "mu2-none-clipped-batch", Case(batched, POOL, SOME_MACHINES, pseudocode.mu2_cancelling)


def sgd_cases():
    for trust, (clip, end) in product(("none", "server"), [*product(CLIPS, ["last"]), ("clipped", "average")]):
        average = end == "average"
        protocol = NoisySGD(trust=trust, clip=CLIPS[clip], average=average, **SETTINGS)
        oracle = partial(pseudocode.noisy_sgd, average=average)
        yield f"sgd-{trust}-{clip}-{end}", Case(protocol, POOL, SOME_MACHINES, oracle)
    protocol = NoisySGD(trust="server", clip=0.5, server=ServerOptimizer("adam", b1=0.8, b2=0.9), **SETTINGS)
    oracle = partial(pseudocode.noisy_sgd, server=partial(optimizers.adam, 0.8, 0.9))
    yield "sgd-server-clipped-adam", Case(protocol, POOL, SOME_MACHINES, oracle)


def stale_cases():
    for name, schedule in {"uniform": "uniform", "sequence": SEQUENCE}.items():
        protocol = StaleMomentum(clip=0.5, noise_schedule=schedule, **SETTINGS)
        yield f"stale-clipped-{name}", Case(protocol, POOL, SOME_MACHINES, pseudocode.stale_momentum)
    batched = StaleMomentum(clip=0.5, batch=2, **SETTINGS)
    yield "stale-clipped-batch", Case(batched, POOL, SOME_MACHINES, pseudocode.stale_momentum)


POOL_CASES = dict([*mu2_cases(), *sgd_cases(), *stale_cases()])

# ---- minibatches of a machine's records

RECORDS, FEATURES, RADIUS = 36, 3, 1.5
ROWS = np.array([np.random.default_rng([8, t]).permutation(MACHINES)[:PER_ROUND] for t in range(ROUNDS)])
PARTIAL = Given(MACHINES, ROWS)
VARYING = Varying.between(MACHINES, 1, 3)
X = unit_rows(np.random.default_rng(1), MACHINES * RECORDS, FEATURES).reshape(MACHINES, RECORDS, FEATURES)
Y = X[..., 0] > 0.1
SHARES = linear_problem(X, Y.astype(int), Logistic(), feature_bound=1.0, constraint=Ball(RADIUS))
STEP = {"step_size": 0.7}


def minibatch_oracle(ready, problem, gradients, plan, start, noise, factor=1.0):
    own = {"step": factor * ready.step_size, "modulus": ready.strong_convexity, "window": ready.window}
    return isrl.minibatch(gradients, plan, start, radius=RADIUS, noise=np.asarray(noise) / factor, **own)


def momentum_oracle(ready, problem, gradients, plan, start, noise):
    own = {"step": ready.step_size, "server": partial(optimizers.momentum, 0.8)}
    return isrl.minibatch(gradients, plan, start, radius=RADIUS, noise=np.asarray(noise), **own)


def summed_oracle(ready, problem, gradients, plan, start, noise):
    return minibatch_oracle(ready, problem, gradients, plan, start, noise, factor=plan[0][2].sum())


def accelerated_oracle(ready, problem, gradients, plan, start, noise):
    own = {"modulus": float(ready.strong_convexity), "regularisation": float(ready.regularisation or 0.0)}
    places = [(round(float(r)), float(v)) for r, v, _ in ready.schedule]
    points, _ = isrl.accelerated(gradients, plan, start, places=places, radius=RADIUS, noise=noise, **own)
    return points, points[-1]


def local_oracle(ready, problem, gradients, plan, start, noise):
    own = {"step": ready.step_size, "window": ready.window}
    return isrl.local(gradients, plan, start, radius=RADIUS, noise=noise, **own)


def served_local_oracle(ready, problem, gradients, plan, start, noise):
    own = {"step": ready.step_size, "server": partial(optimizers.adam, 0.8, 0.9), "server_step": ready.server_step}
    return isrl.local(gradients, plan, start, radius=RADIUS, noise=noise, **own)


def minibatch(problem=SHARES, participation=PARTIAL, oracle=minibatch_oracle, **settings):
    protocol = NoisyMinibatchSGD(**{"noise_std": 0.4, "batch": 4, **STEP, **settings})
    return Case(protocol, problem, participation, oracle)


def accelerated(participation=PARTIAL, **settings):
    protocol = AcceleratedMinibatchSGD(**{"noise_std": 0.4, "batch": 4, **settings})
    return Case(protocol, SHARES, participation, accelerated_oracle)


def local(participation=PARTIAL, oracle=local_oracle, **settings):
    return Case(LocalSGD(**{"noise_std": 0.4, "batch": 3, **STEP, **settings}), SHARES, participation, oracle)


def released(oracle=None, **settings):
    protocol = ReleasedMinibatchSGD(**{"noise_std": 0.4, "batch": 4, **STEP, **settings})
    return Case(protocol, SHARES, PARTIAL, oracle)


SAMPLERS = {"replacement": 4, "subset": 4, "poisson": 4, "disjoint": 3, "full": None}
WEIGHTED = replace(SHARES, machine_weights=(0.4, 0.3, 0.2, 0.1))
MULTISTAGE = {"form": "multistage", "strong_convexity": 0.24, "variance": 1e-5, "gap": 0.2}
RECORD_CASES = {
    **{f"minibatch-{name}": minibatch(sampler=name, batch=batch) for name, batch in SAMPLERS.items()},
    "minibatch-sum": released(summed_oracle, aggregate="sum", step_size=0.3),
    "minibatch-window": minibatch(window=5),
    "minibatch-strong": minibatch(strong_convexity=0.2),
    "minibatch-clipped": minibatch(clip=0.3),
    "minibatch-varying": minibatch(participation=VARYING),
    "minibatch-batches": minibatch(batch=(1, 2, 3, 4)),
    "minibatch-weights": minibatch(WEIGHTED),
    "minibatch-momentum": minibatch(oracle=momentum_oracle, server=ServerOptimizer("sgd", momentum=0.8), step_size=0.2),
    "accelerated-plain": accelerated(step_size=0.5),
    "accelerated-theory": accelerated(),
    "accelerated-regularised": accelerated(form="regularised", regularisation=0.3),
    "accelerated-multistage": accelerated(**MULTISTAGE),
    "accelerated-one-pass": accelerated(sampler="disjoint", batch=3),
    "accelerated-varying": accelerated(VARYING),
    "local": local(),
    "local-window": local(window=4),
    "local-clipped": local(clip=0.3),
    "local-disjoint": local(sampler="disjoint"),
    "local-varying": local(VARYING),
    "local-adam": local(oracle=served_local_oracle, server=ServerOptimizer("adam", b1=0.8, b2=0.9), server_step=0.05),
}
FURTHER_CASES = {  # without an oracle
    "minibatch-shuffled": minibatch(trust="shuffler", batch=1),
    "released-message": released(clip=0.3, clip_at="message", sampler="replacement"),
    "dsgd-ring": Case(DSGD(noise_std=0.4, sampler="full", **STEP), SHARES, Full(MACHINES)),
    "dsgd-pairwise": Case(
        DSGD(
            noise_std=0.4, batch=4, clip=0.3, mixing=["complete", "ring"], noise_schedule=Pairwise("ring", 2.0), **STEP
        ),
        SHARES,
        Full(MACHINES),
    ),
    "released-local": Case(ReleasedLocalSGD(noise_std=0.4, batch=3, **STEP), SHARES, PARTIAL),
}


def user(method=UserSGD, participation=SOME_MACHINES, **settings):
    return Case(method(**{"noise_std": 0.4, "step_size": 0.3, **settings}), POOL, participation)


USER_CASES = {
    "user-shuffler": user(),
    "user-clipped": user(clip=0.5),
    "user-none": user(trust="none"),
    "user-server": user(trust="server"),
    "user-pan-private": user(trust="pan-private"),
    "user-agd": user(UserAGD),
    "user-agd-none": user(UserAGD, trust="none"),
    "user-agd-strong": user(UserAGD, strong_convexity=0.3, step_size=None),
}


def tree(participation=PARTIAL, **settings):
    protocol = TreeMomentum(**{"noise_std": 0.4, "batch": 4, "alpha": 0.5, "step_size": 0.1, **settings})
    return Case(protocol, SHARES, participation)


def reduced(**settings):
    protocol = ReducedTreeMomentum(**{"noise_std": 0.4, "batch": 9, "alpha": 0.5, "step_size": 0.1, **settings})
    return Case(protocol, SHARES, Full(MACHINES))


TREE_CASES = {
    "tree-server": tree(),
    "tree-none": tree(Full(MACHINES), trust="none", sampler="reshuffled"),
    "tree-by-sensitivity": tree(factor="sensitivity tree", clip=0.3),
    "tree-independent": tree(factor="independent"),
    "reduced-server": reduced(),
    "reduced-none": reduced(trust="none", clip=0.3),
}


def of_clients(method=FedAvg, unit="machine", **settings):
    bound = {"update_clip": 0.1} if unit == "machine" else {"clip": 0.3}
    work = {"local_epochs": 1, "batch": 3} if "local_steps" not in settings else {}
    protocol = method(**{"noise_std": 0.4, "step_size": 0.2, "unit": unit, **bound, **work, **settings})
    return Case(protocol, SHARES, PARTIAL)


CLIENT_CASES = {
    "fedavg-server": of_clients(),
    "fedavg-tree": of_clients(noise_schedule="tree"),
    "fedavg-none": of_clients(trust="none"),
    "fedavg-record": of_clients(unit="record"),
    "fedavg-steps": of_clients(unit="record", local_steps=3, batch=4, sampler="poisson"),
    "scaffold-server": of_clients(Scaffold),
    "scaffold-none": of_clients(Scaffold, trust="none"),
    "scaffold-record": of_clients(Scaffold, unit="record"),
    "scaffold-adaptive": of_clients(Scaffold, update_clip=AdaptiveClip(start=0.1)),
}
CASES = {**POOL_CASES, **RECORD_CASES, **FURTHER_CASES, **USER_CASES, **TREE_CASES, **CLIENT_CASES}

# one case per protocol, with samplers whose accounting is fast
REPRESENTATIVES = (
    *("mu2-none-clipped-uniform", "stale-clipped-uniform", "sgd-server-clipped-last", "minibatch-full"),
    *("accelerated-plain", "local-disjoint", "user-shuffler", "user-agd", "tree-none", "reduced-server"),
    *("fedavg-server", "scaffold-record", "dsgd-ring"),
)
