"""Messages that are another function of one record: bounded, isolated, and counted with their own dimension."""

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PARTIAL, POOL, SHARES, SOME_MACHINES
from flax import struct
from heavy_ball import HeavyBall
from jax.custom_batching import custom_vmap
from neighbours import KEY, with_sample

from fedprivjax import (
    Algorithm,
    BitMean,
    GaussianMean,
    LocalEpochs,
    LocalPrivacy,
    MimeLite,
    Momentum,
    NoisyMessages,
    NoisyMomentum,
    NoisyRecords,
    Protocol,
    Refusal,
    general_problem,
    gradient,
    per_record,
    simulate,
    transcript,
)
from fedprivjax.engine.prepare import ready, round_inputs
from fedprivjax.method.linear import Linear, Statistic
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.round import flat_rows
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.stale_momentum import Stale

ROUNDS, CLIP = 6, 0.5
STEP = {"step_size": 0.1}


def features(record, w, factor):
    return factor * record.example.features


@struct.dataclass
class Features(Algorithm):
    """It reads means of the records' features, and does not move."""

    factor: Any = 1.0
    read: Any = struct.field(pytree_node=False, default=None)

    @property
    def reads(self):
        return super().reads if self.read is None else self.read

    def init(self, public, step):
        return public.start, jnp.zeros(public.start.shape[-1])

    def message(self, server, t):
        return per_record(features, server[0], self.factor, shape=server[1].shape)

    def serve(self, server, read, at):
        return server[0], read

    def point(self, server):
        return server[0]


def sends(make):
    """Return an algorithm that sends `make(w)`."""
    own = {"message": lambda self, server, t: make(server[0]), "serve": lambda self, server, read, at: server}
    own["__module__"] = __name__
    return struct.dataclass(type("Sends", (Features,), own))()


def made(algorithm, privacy=None, **settings):
    privacy = NoisyMessages(clip=CLIP) if privacy is None else privacy
    return Protocol(algorithm, privacy=privacy, **({"noise_std": 1.0} | STEP | settings))


def prepared(algorithm, privacy=None, problem=POOL, scheme=SOME_MACHINES, rounds=ROUNDS, **settings) -> Any:
    return ready(made(algorithm, privacy, **settings), problem, scheme, rounds=rounds, metrics=())


@typed_jit(static_argnames="size")
def first_round(protocol, problem, inputs, size):
    """The participants' messages without noise, and what the server reads without noise."""
    state = protocol.init(problem, size, KEY)
    rows = flat_rows(problem, protocol.rounds.messages(problem, state, inputs, None, KEY))
    return rows, protocol.round(problem, state, inputs, None, KEY)[0].server[1]


def first(start, problem=None):
    protocol, inputs = as_leaves(start.protocol.traced), jax.tree.map(lambda leaf: leaf[0], round_inputs(start.plan))
    problem = start.problem if problem is None else problem
    return [np.asarray(one, float) for one in first_round(protocol, problem.traced, inputs, start.plan.size)]


# ---- value, bound, sensitivity

PRIVACY = {
    "none": (NoisyMessages(clip=CLIP), POOL, SOME_MACHINES),
    "server": (NoisyMessages(clip=CLIP, trust="server"), POOL, SOME_MACHINES),
    "cancelled": (NoisyMessages(clip=CLIP, noise="uniform", batch=2), POOL, SOME_MACHINES),
    "toeplitz": (NoisyMessages(clip=CLIP, noise="toeplitz", trust="server"), POOL, SOME_MACHINES),
    "records": (NoisyRecords(clip=CLIP, batch=4), SHARES, PARTIAL),
    "gaussian": (GaussianMean(clip=CLIP), POOL, SOME_MACHINES),
    "bits": (BitMean(clip=CLIP, levels=8), POOL, SOME_MACHINES),
}


@pytest.mark.parametrize("name", PRIVACY)
def test_a_record_moves_a_message_by_the_sensitivity_and_no_other(name):
    """Features of norm 1 are clipped to C. The record is replaced by its opposite: 2C, divided by the batch."""
    privacy, problem, scheme = PRIVACY[name]
    start = prepared(Features(), privacy, problem, scheme)
    used = start.plan.samples[0]
    record = int(np.ravel(used)[0])
    rows, mean = first(start)
    x = np.asarray(problem.pool.features, float)[used]
    each = x if x.ndim == 2 else x.mean(axis=1)
    np.testing.assert_allclose(rows, CLIP * each, atol=1e-6)
    np.testing.assert_allclose(mean, rows.mean(axis=0), atol=1e-6)
    other = with_sample(problem, record, -problem.pool.features[record], problem.pool.label[record])
    moved, moved_mean = first(start, other)
    np.testing.assert_array_equal(moved[1:], rows[1:])
    change, of_mean = np.linalg.norm(moved[0] - rows[0]), np.linalg.norm(moved_mean - mean)
    batch = 1 if x.ndim == 2 else x.shape[1]
    assert change == pytest.approx(2 * CLIP / batch, rel=1e-5)
    if isinstance(privacy, NoisyMessages):
        assert start.event.sensitivity == pytest.approx(of_mean if privacy.trust == "server" else change, rel=1e-5)
    else:
        np.testing.assert_allclose(start.event.releases.shift, change, rtol=1e-5)
    assert "a message is the function" in str(start.guarantee)


@struct.dataclass
class Doubled(Features):
    def message(self, server, t):
        return -2.0 * super().message(server, t)


def test_a_value_is_within_the_clip():
    """A factor outside the function is bounded, too. Infinite and undefined values become 0."""
    for number in (1e4, -3e18, np.inf, np.nan):
        rows, _ = first(prepared(Doubled(factor=number)))
        assert np.abs(rows).max() <= CLIP * (1 + 1e-6)
        assert (np.abs(rows).max() > 0) == np.isfinite(number)


@pytest.mark.slow
def test_noise_bits_and_transcript_have_the_dimension_of_the_value():
    start = prepared(Features())
    costs = start.protocol.rounds.costs(POOL)
    assert start.protocol.rounds.message_dimension(POOL) == 5
    assert (costs["sent_bits"], costs["gradients_per_use"]) == (160.0, 0.0)
    view: Any = transcript(start.protocol, POOL, SOME_MACHINES, rounds=ROUNDS)
    assert view.queries.shape == (ROUNDS, 15)
    assert view.messages.shape == (ROUNDS, 2, 5)
    assert float(view.broadcast[0][0]) == 1.0
    alone = prepared(sends(lambda w: per_record(loss, w)), BitMean(clip=CLIP, levels=4))
    trials = int(alone.protocol.privacy.vector_sum.trials)
    assert (
        alone.protocol.rounds.costs(POOL)["sent_bits"]
        == alone.protocol.rounds.costs(POOL)["sent_messages"]
        == 4 + trials
    )


def test_memory_is_that_of_losses():
    """Records of a network are computed together as far as their losses need memory, not d numbers each."""
    problem = general_problem(lambda w, x: jnp.sum(w[:2] * x) ** 2, np.ones((60, 2), np.float32), start=np.ones(4000))
    start = prepared(sends(lambda w: per_record(loss, w)), problem=problem)
    assert start.protocol.rounds.vectors_in_memory(problem, start.plan.size, 10_000) < 50


def test_a_momentum_of_values_is_read():
    privacy = NoisyMomentum(clip=CLIP, batch=12)
    start = prepared(Features(read=Momentum(0.5)), privacy, SHARES, PARTIAL)
    rows, read = first(start)
    np.testing.assert_allclose(read, rows.mean(axis=0), atol=1e-6)  # messages are α times the values


# ---- refusals


def test_values_are_always_clipped():
    for privacy in (NoisyMessages(), NoisyRecords(batch=4), GaussianMean(), BitMean()):
        problem, scheme = (SHARES, PARTIAL) if type(privacy) is NoisyRecords else (POOL, SOME_MACHINES)
        with pytest.raises(Refusal, match="clip must be set"):
            prepared(Features(), privacy, problem, scheme, epsilon=1.0, noise_std=None)


class WithMessages:
    """An object with a method."""

    def value(self, record, w):
        return record.loss(w)


def printed(record, w):
    jax.debug.print("{}", record.loss(w))
    return record.loss(w)


def shared(record, w):
    return jax.lax.psum(record.loss(w), "machines")


def with_default(record, w, factor=2.0):
    return factor * record.loss(w)


def whole(record, w):
    return jnp.int32(1)


def pair(record, w):
    return record.loss(w), record.loss(w)


def loss(record, w):
    return record.loss(w)


def misspelt(record, w):
    return record.example.featurs @ w


REFUSED: dict[str, Any] = {
    "misspelt": (
        lambda w: per_record(misspelt, w),
        r"misspelt must be computed from record.loss and record.example, which is Example\(features=.*, got "
        r"AttributeError: 'Example' object has no attribute 'featurs'",
    ),
    "bound default": (lambda w: per_record(lambda record, w, at=w: record.loss(at), w), "without closure and defaults"),
    "traced closure": (lambda w: per_record((lambda v: lambda record, w: record.loss(v))(w), w), "without closure"),
    "method": (lambda w: per_record(WithMessages().value, w), "without closure and defaults, got"),
    "partial": (lambda w: per_record(partial(loss), w), "without closure and defaults, got"),
    "defaults": (lambda w: per_record(with_default, w), "without closure and defaults, got"),
    "integers": (lambda w: per_record(whole, w), r"whole must return an array of float32 of shape \(\)"),
    "two values": (lambda w: per_record(pair, w), r"pair must return an array of float32 of shape \(\)"),
    "shape": (lambda w: per_record(loss, w, shape=(2,)), r"loss must return an array of float32 of shape \(2,\)"),
    "no shape": (lambda w: per_record(loss, w, shape=(0,)), "must be a tuple of positive integers"),
    "number as shape": (lambda w: per_record(loss, w, shape=cast(Any, 2)), "a tuple of positive integers, got 2"),
    "point": (lambda w: per_record(loss, w[0]), "point in Sends must be like the parameters"),
    "public": (lambda w: per_record(loss, w, "text"), "a public argument of per_record in Sends must be numbers"),
    "callback": (lambda w: per_record(printed, w), "must compute what it returns from its arguments alone"),
    "devices": (lambda w: per_record(shared, w), "must compute what it returns from its arguments alone"),
    "sum": (lambda w: per_record(loss, w) + gradient(w), "a sum of messages must be of gradients, got the function"),
    "difference": (lambda w: gradient(w) - per_record(loss, w), "a sum of messages must be of gradients"),
    "forged": (lambda w: Linear((None,), (w,), Statistic(loss, ())), r"must be made by per_record\(function, point\)"),
    "forged function": (lambda w: Linear((None,), ((w,),), cast(Any, (loss, ()))), r"given to per_record\(function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_function_of_one_record_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(Refusal, match=message):
        prepared(sends(make))


@custom_vmap
def averaged(x):
    return x


@averaged.def_vmap
def over_records(size, batched, x):
    return jnp.broadcast_to(jnp.mean(x), x.shape), True


TRACES: list[int] = []


def of_all_records(record, w):
    """It is of one record until it is traced for the second time."""
    TRACES.append(1)
    return record.loss(w) if len(TRACES) == 1 else averaged(record.loss(w))


def test_a_function_that_changes_after_it_was_read_is_refused():
    TRACES.clear()
    start = prepared(sends(lambda w: per_record(of_all_records, w)))
    with pytest.raises(Refusal, match=r"must compute what it returns from its arguments alone.*'custom_vmap_call'"):
        first(start)


def test_a_message_of_another_kind_in_the_program_is_refused():
    for forms in ((loss, None), (None, loss), (loss, pair)):
        count = iter(forms)

        def make(w, count=count, last=forms[-1]):
            now = next(count, last)
            return gradient(w) if now is None else per_record(now, w)

        with pytest.raises(Refusal, match="message of Sends must be as in the first round"):
            simulate(made(sends(make)), POOL, SOME_MACHINES, rounds=2)


@struct.dataclass
class LocalLosses(MimeLite):
    def ask(self, carry):
        return per_record(loss, carry.walk)


@struct.dataclass
class GrowingLosses(Stale):
    def increment(self, server, t, before):
        return per_record(loss, server.w)


def test_local_work_and_growing_sums_need_gradients():
    work = Protocol(LocalLosses(), privacy=LocalPrivacy(work=LocalEpochs(1, 3)), **STEP)
    with pytest.raises(Refusal, match="LocalLosses must be a combination of gradients in local work, got the function"):
        ready(work, SHARES, PARTIAL, rounds=2, metrics=())
    with pytest.raises(Refusal, match="GrowingLosses must be a combination of gradients in growing sums, got the"):
        prepared(GrowingLosses(), NoisyMessages(clip=CLIP, noise="uniform"))


def test_other_algorithms_are_as_before():
    """The facts of a message of gradients name no function."""
    start = prepared(HeavyBall())
    assert (start.protocol.known.statistic, start.protocol.known.shape) == (None, None)
    assert start.protocol.rounds.message_dimension(POOL) == 15
