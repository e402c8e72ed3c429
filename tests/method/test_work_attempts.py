"""Attempts to break a guarantee by an algorithm of local work: the bound holds, or the run is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from flax import struct

from fedprivjax import (
    AdaptiveClip,
    FedDyn,
    FedExP,
    Full,
    LocalEpochs,
    LocalPrivacy,
    Logistic,
    PoissonCohorts,
    Protocol,
    Refusal,
    SecretSubsets,
    gradient,
    linear_problem,
    ready,
    simulate,
    transcript,
)
from fedprivjax.engine.transcript import replay
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import AtServer, Work, add, mul, sub, zeros
from fedprivjax.protocols.fedavg import LocalGradientSteps

MACHINES, RECORDS, ROUNDS, CLIP = 4, 4, 3, 0.3
WORK = LocalEpochs(1, 2)
STEP = {"step_size": 5.0}
PRIVATE = LocalPrivacy(work=WORK, unit="machine", update_clip=CLIP, trust="none")
ADAPTED = LocalPrivacy(work=WORK, unit="machine", update_clip=AdaptiveClip(start=CLIP), trust="none")


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def problem(scale=1.0, seed=5):
    """Return a problem on four machines of four records, whose features have about this scale."""
    rng = np.random.default_rng(seed)
    features = scale * rng.normal(size=(MACHINES, RECORDS, 3)).astype(np.float32)
    return linear_problem(features, rng.integers(0, 2, (MACHINES, RECORDS)), Logistic())


def sent(algorithm, privacy=PRIVATE, where=None, noise_std=1e-9):
    """Return what machines send in every round, [rounds, machines, numbers], almost without noise."""
    method = Protocol(algorithm, privacy=privacy, noise_std=noise_std, **STEP)
    start = ready(method, where or problem(), Full(MACHINES), rounds=ROUNDS, seed=2, noise_method="materialised")
    return start, np.asarray(replay(start.arguments, start.plan.size)[1][1])


# ---- messages longer than the bound


@struct.dataclass
class ExtraCoordinate(LocalGradientSteps):
    """A coordinate 1000·‖Δ‖² beside the update."""

    def leave(self, carry, received, own, work):
        update = super().leave(carry, received, own, work)
        return update, 1000 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update))

    def serve(self, server, mean, at):
        return super().serve(server, mean[0], at)


@struct.dataclass
class ThreeTimes(LocalGradientSteps):
    """Three times the update."""

    def leave(self, carry, received, own, work):
        return mul(3.0, super().leave(carry, received, own, work))


@struct.dataclass
class SentAgain(LocalGradientSteps):
    """The sum of all messages so far."""

    def own(self, public):
        return zeros(public.start)

    def leave(self, carry, received, own, work):
        return add(super().leave(carry, received, own, work), own)

    def keep(self, own, message, work):
        return add(own, message)


@struct.dataclass
class EveryLeaf(LocalGradientSteps):
    """Two leaves of norm C each."""

    def leave(self, carry, received, own, work):
        update = super().leave(carry, received, own, work)
        update = mul(CLIP / jnp.maximum(jnp.linalg.norm(update), 1e-9), update)
        return update, -update

    def serve(self, server, mean, at):
        return super().serve(server, sub(*mean), at)


LONGER = [ExtraCoordinate(), ThreeTimes(), SentAgain(), EveryLeaf()]


@pytest.mark.parametrize("scale", [pytest.param(0.3, marks=pytest.mark.slow), 100.0])
@pytest.mark.parametrize("algorithm", sparing(LONGER, LONGER[3:]), ids=lambda one: type(one).__name__)
def test_a_whole_message_is_bounded(algorithm, scale):
    start, messages = sent(algorithm, where=problem(scale))
    norms = np.linalg.norm(messages, axis=2)
    assert norms.max() <= CLIP * (1 + 1e-5)
    assert norms.max() == pytest.approx(CLIP, rel=1e-4)
    plain, _ = sent(LocalGradientSteps())
    assert start.event.sensitivity == pytest.approx(2 * CLIP)
    assert start.event.mu == pytest.approx(plain.event.mu)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", LONGER, ids=lambda one: type(one).__name__)
def test_a_whole_message_is_bounded_by_an_adaptive_clip(algorithm):
    """The pair of message and bit has norm 1, and the bit is read from its place."""
    _, messages = sent(algorithm, ADAPTED, problem(100.0), noise_std=1e-6)
    assert np.linalg.norm(messages, axis=2).max() == pytest.approx(1.0, abs=1e-4)
    clips = transcript(
        Protocol(algorithm, privacy=ADAPTED, noise_std=1e-6, **STEP), problem(100.0), Full(MACHINES), rounds=ROUNDS
    ).broadcast[-1]
    unclipped = (messages[..., -1] > 0).mean(axis=1)
    expected = CLIP * np.exp(-0.2 * np.cumsum(unclipped - 0.5))
    np.testing.assert_allclose(np.exp(np.ravel(clips)), expected, rtol=1e-3)


# ---- the message of a local step

RECORD = LocalPrivacy(work=WORK, unit="record", clip=CLIP)


@struct.dataclass
class Scaled(LocalGradientSteps):
    """A multiple of the gradient."""

    factor: Any = 1.0

    def ask(self, carry):
        return self.factor * gradient(carry)


@struct.dataclass
class FarAway(LocalGradientSteps):
    """The gradient at a point that is not finite."""

    def ask(self, carry):
        return gradient(carry + jnp.nan)


def stepped(algorithm, **options):
    method = Protocol(algorithm, privacy=RECORD, noise_std=1e-9, step_size=1.0)
    return transcript(method, problem(100.0), Full(MACHINES), rounds=ROUNDS, seed=2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaled(factor=1e4), Scaled(factor=-1e4), Scaled(factor=1e-4)], ids=str)
def test_a_coefficient_is_part_of_what_is_bounded(algorithm):
    """A step moves by the mean of two records' messages, of norm at most C each."""
    moves = np.linalg.norm(stepped(algorithm).steps, axis=-1)
    assert moves.max() <= CLIP * (1 + 1e-5)
    assert (moves.max() > 0.5 * CLIP) == (abs(float(algorithm.factor)) > 1)


ENDLESS = [Scaled(factor=np.inf), Scaled(factor=np.nan), FarAway()]


@pytest.mark.parametrize("algorithm", sparing(ENDLESS, ENDLESS[:2]), ids=str)
def test_messages_that_are_not_finite_are_zero(algorithm):
    assert np.abs(stepped(algorithm).messages).max() < 1e-6
    noisy = Protocol(algorithm, privacy=RECORD, epsilon=5.0, step_size=1.0)
    run = simulate(noisy, problem(), Full(MACHINES), rounds=ROUNDS)
    assert np.isfinite(numbers(run.params)).all()
    silent = Protocol(algorithm, privacy=LocalPrivacy(work=WORK), step_size=1.0)
    assert np.isnan(numbers(simulate(silent, problem(), Full(MACHINES), rounds=ROUNDS).params)).all()


@struct.dataclass
class Vectorised(LocalGradientSteps):
    """A coefficient for every coordinate."""

    def ask(self, carry):
        return carry * gradient(carry)


@struct.dataclass
class Twice(LocalGradientSteps):
    """Two messages in a step."""

    def ask(self, carry):
        return gradient(carry), gradient(carry)


@struct.dataclass
class Unequal(LocalGradientSteps):
    """One gradient when it is read, and two in the program."""

    calls: Any = struct.field(pytree_node=False, default_factory=list)

    def ask(self, carry):
        self.calls.append(1)
        g = gradient(carry)
        return g if len(self.calls) == 1 else g + g


REFUSED = {
    "a vector": (Vectorised(), RECORD, "a coefficient of a message must be one real number, got "),
    "two messages": (Twice(), RECORD, "message of Twice must be a combination of gradients, got "),
    "two gradients later": (Unequal(), RECORD, "message of Unequal must have the same number of gradients"),
    "a combination without a clip": (
        Scaled(),
        LocalPrivacy(work=WORK, unit="record"),
        "clip must be set with unit = 'record', because a local step's message is a combination",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_messages_of_a_step_are_refused(name):
    algorithm, privacy, message = REFUSED[name]
    with pytest.raises(Refusal, match=f"^{message}"):
        simulate(Protocol(algorithm, privacy=privacy, noise_std=1.0, **STEP), problem(), Full(MACHINES), rounds=2)


# ---- numbers of a message


@struct.dataclass
class Replied(LocalGradientSteps):
    """A value in place of the update, on machines whose first step moves up."""

    value: Any = 0.0
    kind: Any = struct.field(pytree_node=False, default=jnp.float32)

    def leave(self, carry, received, own, work):
        told = jnp.where(carry[0] > received[0], self.value, 0.0)
        return jnp.full(received.shape, told).astype(self.kind)


@pytest.mark.parametrize("value", sparing([np.nan, np.inf, -np.inf, 1e30], [np.nan]))
def test_a_message_that_is_not_finite_is_zero_before_its_norm_and_its_bit(value):
    """1e30 is finite, and its square is not."""
    assert not np.any(np.round(sent(Replied(value=value))[1], 6))
    messages = np.round(sent(Replied(value=value), ADAPTED, noise_std=1e-9)[1][0], 6)
    assert len(np.unique(messages, axis=0)) == 1
    apart = np.round(sent(Replied(value=10.0), ADAPTED, noise_std=1e-9)[1][0], 6)
    assert len(np.unique(apart, axis=0)) == 2
    method = Protocol(Replied(value=value), privacy=PRIVATE, epsilon=5.0, **STEP)
    run = simulate(method, problem(), Full(MACHINES), rounds=ROUNDS)
    assert np.isfinite(numbers(run.params)).all()


@pytest.mark.parametrize("kind", [jnp.int32, jnp.bool_, jnp.float16, jnp.bfloat16])
def test_messages_of_other_numbers_are_refused(kind):
    """The squares of 65536 overflow to 0 in int32."""
    method = Protocol(Replied(value=65536.0, kind=kind), privacy=PRIVATE, noise_std=1.0, **STEP)
    said = f"^leave must return float32 numbers in Replied, got {jnp.dtype(kind).name}. Convert them"
    with pytest.raises(Refusal, match=said):
        ready(method, problem(), Full(MACHINES), rounds=2)


# ---- the server and the machines' states


@struct.dataclass
class Recorded(LocalGradientSteps):
    """The divisor that the server is told of, as the point."""

    def serve(self, server, mean, at):
        return super().serve(server, mul(0.0, mean), at)._replace(w=0 * server.w + at.cohort)


def test_the_server_is_told_of_the_expected_cohort_alone():
    privacy = LocalPrivacy(work=WORK, unit="machine", update_clip=CLIP)
    for seed in range(3):
        method = Protocol(Recorded(), privacy=privacy, noise_std=1.0, **STEP)
        run = simulate(method, problem(), PoissonCohorts(MACHINES, 0.4), rounds=2, seed=seed)
        np.testing.assert_allclose(run.params, 0.4 * MACHINES, rtol=1e-6)


@struct.dataclass
class Personal(LocalGradientSteps):
    """Machines start at a point of their own."""

    def own(self, public):
        return zeros(public.start)

    def enter(self, received, own):
        return super().enter(add(received, own), own)

    def keep(self, own, message, work):
        return add(own, message)


def test_nothing_that_the_server_shows_depends_on_machines_states():
    """Neither the output nor other iterates, the query, and the numbers that it sends."""
    method = Protocol(Personal(), privacy=PRIVATE, noise_std=1.0, **STEP)
    start = ready(method, problem(), Full(MACHINES), rounds=2)
    state = start.protocol.init(start.problem, start.plan.size, start.key)
    hidden = state._replace(own=jax.tree.map(lambda rows: rows + jnp.nan, state.own))
    rounds = start.protocol.rounds
    for shown in (rounds.output, rounds.iterates, rounds.query, rounds.broadcast):
        assert np.isfinite(numbers((shown(hidden), 0.0))).all()


@struct.dataclass
class SometimesStateful(LocalGradientSteps):
    """Nothing is kept when it is read, and a point in the program."""

    calls: Any = struct.field(pytree_node=False, default_factory=list)

    def own(self, public):
        self.calls.append(1)
        return () if len(self.calls) < 8 else zeros(public.start)


def test_client_state_is_known_to_the_guarantee():
    privacy = LocalPrivacy(work=WORK, unit="machine", update_clip=CLIP)

    def run(algorithm):
        method = Protocol(algorithm, privacy=privacy, noise_std=1.0, step_size=0.1)
        return simulate(method, problem(), SecretSubsets(MACHINES, 2), rounds=2)

    assert run(FedExP()).guarantee.private
    with pytest.raises(Refusal, match=r"^participation must be PoissonCohorts or public with client state"):
        run(FedDyn())
    with pytest.raises(Refusal, match=r"^own of SometimesStateful must always hold numbers, or never, got "):
        run(SometimesStateful())


def test_local_work_is_told_no_data():
    """No function of an algorithm is given a record: from `init` to `serve`, all of it are public facts and states."""
    given = {}

    def recorded(name):
        def function(self, *arguments):
            given[name] = arguments
            return getattr(Personal, name)(self, *arguments)

        return function

    names = ("init", "sends", "own", "enter", "ask", "move", "leave", "keep", "serve", "point")
    watched = struct.dataclass(type("Watched", (Personal,), {name: recorded(name) for name in names}))()
    ready(Protocol(watched, privacy=PRIVATE, noise_std=1.0, **STEP), problem(), Full(MACHINES), rounds=2)
    assert given.keys() == {*names}
    assert {type(given[name][0]) for name in ("init", "own")} == {Public}
    assert {type(given[name][-1]) for name in ("move", "leave", "keep")} == {Work}
    assert type(given["serve"][-1]) is AtServer
    assert Work._fields == ("step", "planned", "taken", "project")
    assert AtServer._fields == ("t", "step", "planned", "cohort", "project", "start", "key")
    shapes = {getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(given)}
    assert shapes == {(), (3,)}  # numbers and parameters


# ---- privacy objects


def test_a_privacy_object_has_no_subclass():
    with pytest.raises(Refusal, match=r"^LocalPrivacy must not be subclassed, .* got Quiet. Define a LocalAlgorithm"):
        type("Quiet", (LocalPrivacy,), {"sent": lambda self, message, *of: message})
