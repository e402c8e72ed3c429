"""Attempts of an algorithm to keep a guarantee that is no longer true: each is refused, or its bound holds.

Norms of messages are read by brute force, at states far from the start. An algorithm is given released numbers and
public facts only, so whatever it makes of them is covered.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from cases import POOL, SOME_MACHINES, sparing
from flax import struct
from heavy_ball import HeavyBall

from fedprivjax import (
    Ball,
    Linear,
    Mean,
    NoisyMessages,
    NormBound,
    Protocol,
    Public,
    Refusal,
    Squared,
    Sum,
    gradient,
    linear_problem,
    simulate,
)
from fedprivjax.engine.prepare import ready, round_inputs
from fedprivjax.method.linear import require_message
from fedprivjax.method.mean_rounds import Known
from fedprivjax.method.protocol import Pair, as_leaves
from fedprivjax.method.round import flat_rows
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.report.page import not_covered
from fedprivjax.sweeps.prepare import ready_sweep

ROUNDS, CLIP = 6, 0.5
SETTINGS: dict[str, Any] = {"mu": 1.0, "step_size": 0.05}
KEY = jax.random.key(0)


def made(algorithm, **privacy):
    """The algorithm with noisy messages."""
    return Protocol(algorithm, privacy=NoisyMessages(**({"clip": CLIP} | privacy)), **SETTINGS)


def prepared(algorithm, problem=POOL, **privacy):
    return ready(made(algorithm, **privacy), problem, SOME_MACHINES, rounds=ROUNDS, metrics=())


@typed_jit
def sent(protocol, problem, state, inputs, noise):
    return flat_rows(problem, protocol.rounds.messages(problem, state, inputs, noise, KEY))


def messages(start, far=3.0):
    """Messages of all rounds at random states up to `far` from the start, [rounds, per_round, d]."""
    protocol, problem, rng = as_leaves(start.protocol.traced), start.problem.traced, np.random.default_rng(0)
    rows, inputs = [], round_inputs(start.plan)
    for t in range(ROUNDS):
        state = start.protocol.init(problem, start.plan.size, KEY)
        moved = jax.tree.map(lambda leaf: leaf + far * jnp.float32(rng.normal(size=leaf.shape)), state.server)
        noise = jnp.zeros(problem.dimension)  # a private run
        rows.append(
            sent(protocol, problem, state._replace(server=moved), jax.tree.map(lambda x, t=t: x[t], inputs), noise)
        )
    return np.asarray(jnp.stack(rows), np.float64)


def largest(start, **options):
    return np.linalg.norm(messages(start, **options), axis=-1).max()


def claimed(start):
    """The bound on a message's norm in the event of a private run without a trusted server."""
    return start.event.sensitivity / 2


def sends(make, **members):
    """Return an algorithm like `HeavyBall` that sends `make(server, t)`, with other members."""
    own = {"message": lambda self, server, t: make(server, t), "__module__": __name__, **members}
    return struct.dataclass(type("Sends", (HeavyBall,), own))()


# ---- coefficients


def products(server, number):
    return number * gradient(server[0]) - gradient(server[1])


NUMBERS = [1e4, -3e30, 3, np.float64(1e4), np.inf, np.nan, np.float32(1e-30)]


@pytest.mark.parametrize("number", sparing(NUMBERS, [NUMBERS[0], NUMBERS[5]]), ids=repr)
def test_coefficients_are_within_the_clip(number):
    """10⁴ and 3 were enough to leave the bound before: the whole combination is clipped, and infinite ones are 0."""
    start = prepared(sends(lambda server, t: products(server, number)))
    assert largest(start) <= CLIP * (1 + 1e-5)
    assert (largest(start) > 0) == bool(np.isfinite(number))
    run = simulate(made(sends(lambda server, t: products(server, number))), POOL, SOME_MACHINES, rounds=ROUNDS)
    assert np.isfinite(run.params).all()


class Exponent:
    """Its product with a gradient is another vector."""

    shape, dtype = (), np.dtype(np.float32)

    def __mul__(self, other):
        return jax.tree.map(jnp.exp, other)

    __rmul__ = __mul__


NUMBERS = {
    "vector": np.ones(3),
    "array of one": np.ones(1),
    "complex": 1e4j,
    "flag": True,
    "text": "3",
    "object": Exponent(),
    "none": None,
    "message": gradient(POOL.start),
    "key": KEY,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_other_coefficients_are_refused(name):
    with pytest.raises(Refusal, match="a coefficient of a message must be one real number"):
        simulate(made(sends(lambda server, t: gradient(server[0]) * NUMBERS[name])), POOL, SOME_MACHINES, rounds=2)


def test_a_forged_combination_is_refused():
    """The constructor takes anything; what is evaluated is checked."""
    for forged in (Linear((Exponent(),), (POOL.start,)), Linear((1e4j,), (POOL.start,))):
        with pytest.raises(Refusal, match="a coefficient of a message must be one real number"):
            require_message(forged, POOL.start, "Forged")
    with pytest.raises(Refusal, match="combination of gradients must have as many coefficients as points, got 1 and 2"):
        require_message(Linear((None,), (POOL.start, POOL.start)), POOL.start, "Forged")


# ---- messages

NOT_MESSAGES = {
    "two messages": lambda server, t: (gradient(server[0]), gradient(server[0])),
    "an array": lambda server, t: server[0],
    "nothing": lambda server, t: None,
    "a function": lambda server, t: lambda oracle: oracle(server[0]),
}
POINTS = {
    "integers": lambda w: jnp.full(w.shape, 65536),
    "complex": lambda w: 1j * w,
    "transposed": lambda w: w.T,
    "rows": lambda w: jnp.stack([w, w]),
    "in a list": lambda w: [w],
    "object": lambda w: Exponent(),
    "text": lambda w: "w",
}


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_anything_else_than_one_message_is_refused(name):
    with pytest.raises(Refusal, match="message of Sends must be a combination of gradients, got"):
        simulate(made(sends(NOT_MESSAGES[name])), POOL, SOME_MACHINES, rounds=2)


@pytest.mark.parametrize("name", POINTS)
def test_points_unlike_the_parameters_are_refused(name):
    with pytest.raises(Refusal, match="a gradient's point in Sends must be like the parameters"):
        simulate(made(sends(lambda server, t: gradient(POINTS[name](server[0])))), POOL, SOME_MACHINES, rounds=2)


def test_a_message_that_changes_between_traces_is_refused():
    """What was read before calibration is what runs."""

    def in_turn(*forms):
        count = iter(forms)
        return lambda server, t: next(count, forms[-1])(server[0])

    longer, plain = (lambda w: 1e4 * gradient(w)), gradient
    for first, then, says in (
        (plain, lambda w: gradient(w) + gradient(w), "must have the same number of gradients in every round"),
        (plain, longer, "must be a gradient without a coefficient in every round"),
    ):
        with pytest.raises(Refusal, match=says):
            simulate(made(sends(in_turn(first, then)), clip=None), POOL, SOME_MACHINES, rounds=2)


# ---- classes and objects


def test_sealed_classes_have_no_subclasses():
    for parent in (Linear, NoisyMessages, Pair):
        with pytest.raises(Refusal, match=f"{parent.__name__} must not be subclassed"):
            type("Mine", (parent,), {})


class Unsealing:
    """A parent that leaves out the check of subclasses."""

    def __init_subclass__(cls, **options):
        pass


class Quiet(Unsealing, NoisyMessages):
    """A hundredth of the sensitivity."""

    def event(self, *facts):
        event = super().event(*facts)
        return replace(event, sensitivity=event.sensitivity / 100)


def test_a_subclass_that_passes_the_seal_is_refused():
    with pytest.raises(Refusal, match=r"^privacy must be a NoisyMessages or .* with HeavyBall, got a Quiet"):
        Protocol(HeavyBall(), privacy=Quiet(clip=CLIP), **SETTINGS)


class Unsealing:
    """A base class that leaves the check of subclasses out."""

    def __init_subclass__(cls, **options):
        return None


def test_a_subclass_that_passes_the_seal_is_not_run_in_place_of_its_parent():
    louder = {"__post_init__": lambda self: object.__setattr__(self, "clip", 100 * self.clip), "__module__": __name__}
    kind = struct.dataclass(type("Louder", (Unsealing, NoisyMessages), louder))
    pair = replace(Protocol(HeavyBall(), privacy=NoisyMessages(clip=CLIP), **SETTINGS), privacy=kind(clip=CLIP))
    with pytest.raises(Refusal, match=r"^NoisyMessages must not be subclassed, .* got Louder"):
        simulate(pair, POOL, SOME_MACHINES, rounds=2)


@struct.dataclass(kw_only=True)
class GrowingSGD(SGD):
    """Machines keep sums, in which a record stays."""

    def increment(self, server, t, before):
        return gradient(server.w)

    def remember(self, server):
        return server.w


def test_a_planned_algorithm_of_another_class_is_refused():
    """Its machines would send sums, where the guarantee counts every record in one message."""

    @struct.dataclass(kw_only=True)
    class Sneaking(SGD):
        def planned(self, rounds, step):
            return GrowingSGD()

    method = Protocol(Sneaking(), privacy=NoisyMessages(clip=CLIP), **SETTINGS)
    with pytest.raises(Refusal, match=r"^planned of Sneaking must return a Sneaking, got"):
        simulate(method, POOL, SOME_MACHINES, rounds=2)


@dataclass(frozen=True)
class AlsoASum(Sum):
    """Passes for the sum."""

    def __eq__(self, other):
        return isinstance(other, Mean | Sum)

    __hash__ = None  # type: ignore[assignment]


def test_an_object_that_passes_for_a_sum_is_refused():
    algorithm = sends(lambda server, t: gradient(server[0]), reads=property(lambda self: AlsoASum()))
    with pytest.raises(Refusal, match=r"reads must be Mean\(\), Sum\(\) or Growing\(\)"):
        simulate(made(algorithm, noise="uniform"), POOL, SOME_MACHINES, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(Mean(), Sum()), (Sum(), Mean())], ids=["mean first", "sum first"])
def test_reads_are_asked_once(order):
    """A property that answers programs otherwise: noise, guarantee and program all follow its first answer."""
    answers = iter(order)
    changing = sends(
        lambda server, t: gradient(server[0]), reads=property(lambda self: next(answers, order[1])), beta=0.0
    )
    steady = sends(lambda server, t: gradient(server[0]), reads=property(lambda self: order[0]), beta=0.0)
    runs = [simulate(made(each, noise="uniform"), POOL, SOME_MACHINES, rounds=ROUNDS) for each in (changing, steady)]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.to_json() == runs[1].guarantee.to_json()


def test_what_is_planned_is_bounded_too():
    """The planned algorithm sends 10⁴ times the gradient, with and without a clip."""

    def planned(self, rounds, step):
        return sends(lambda server, t: 1e4 * gradient(server[0]))

    def honest(self, public):
        return NormBound(0.1, ())

    clipped = prepared(sends(lambda server, t: 2 * gradient(server[0]), planned=planned))
    bounded = prepared(sends(lambda server, t: 2 * gradient(server[0]), planned=planned, bound=honest), clip=None)
    for start, bound in ((clipped, CLIP), (bounded, 0.1)):
        assert claimed(start) == bound
        assert 0.9 * bound < largest(start) <= bound * (1 + 1e-5)


def test_forged_knowledge_is_enforced_as_it_is_claimed():
    start = prepared(sends(lambda server, t: 2 * gradient(server[0])))
    forged = replace(start.protocol, privacy=NoisyMessages(), known=Known(1e-3, gradients=1, plain=False))
    assert forged.event(POOL, start.plan).sensitivity == 2e-3
    assert largest(replace(start, protocol=forged)) <= 1e-3 * (1 + 1e-5)


# ---- bounds


def combination(server, t):
    return 2 * gradient(server[0]) - gradient(server[1])


def with_bound(stated, make=combination):
    return sends(make, bound=lambda self, public: stated)


def test_a_false_bound_is_enforced():
    start = prepared(with_bound(NormBound(1e-3, ())), clip=None)
    assert claimed(start) == 1e-3
    assert 0.9e-3 < largest(start) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("stated", [0.0, -1.0, np.nan, 1e-20], ids=str)
def test_a_bound_that_is_no_norm_is_refused(stated):
    with pytest.raises(Refusal, match="bound of Sends must be"):
        prepared(with_bound(NormBound(stated, ())), clip=None)


@pytest.mark.parametrize("stated", [0.5, (0.5, ()), None], ids=str)
def test_a_bound_of_another_type_is_refused(stated):
    with pytest.raises(Refusal, match="bound of Sends must return a NormBound"):
        prepared(with_bound(stated), clip=None)


def test_a_combination_without_a_bound_needs_a_clip():
    for make in (combination, lambda server, t: 1.0 * gradient(server[0])):
        with pytest.raises(Refusal, match=r"clip must be set, .* Set clip in NoisyMessages$"):
            prepared(sends(make), clip=None)
        assert prepared(sends(make)).event.mu == pytest.approx(1.0)
    with pytest.raises(Refusal, match="clip must be set"):
        prepared(with_bound(NormBound(np.inf, ())), clip=None)


def test_a_bound_of_a_plain_gradient_is_the_losss():
    """Noise 10⁻⁵ instead of 114 before."""
    start = prepared(with_bound(NormBound(1e-6, ()), lambda server, t: gradient(server[0])), clip=None)
    assert claimed(start) == POOL.lipschitz
    assert start.protocol.noise_std == pytest.approx(2 * POOL.lipschitz)


def test_a_gradient_outside_the_set_is_within_the_lipschitz_constant():
    """The constant holds on the ball. At 1000 times its radius the gradient is 500 times as long, and clipped."""
    features = np.tile(np.eye(3), (12, 1))
    problem = linear_problem(features, np.ones(36), Squared(1.0), feature_bound=1.0, constraint=Ball(1.0))
    start = prepared(sends(lambda server, t: gradient(1e3 * (1 + server[0]))), problem, clip=None)
    assert claimed(start) == problem.lipschitz
    assert 0.99 * problem.lipschitz < largest(start, far=0.0) <= problem.lipschitz * (1 + 1e-5)


# ---- what an algorithm is given


def test_an_algorithm_is_told_no_data():
    """Neither `init` nor `serve` is given an object that leads to a record."""
    seen = []

    def serve(self, server, read, at):
        seen.append(at)
        return HeavyBall.serve(self, server, read, at)

    algorithm = sends(lambda server, t: gradient(server[0]), serve=serve)
    start = prepared(algorithm)
    simulate(made(algorithm), POOL, SOME_MACHINES, rounds=2)
    public = Public.of(POOL, 4)
    assert public._fields == ("start", "constraint", "lipschitz", "lipschitz_note", "smoothness", "machines", "key")
    assert seen[0]._fields == ("t", "step", "project", "start", "key", "cohort", "public")
    assert seen[0].public is None or seen[0].public._fields == public._fields
    assert vars(seen[0].project.__self__).keys() == vars(POOL.constraint).keys()
    assert start.problem.pool.features.size not in [np.size(leaf) for leaf in jax.tree.leaves((public, seen[0].start))]


@pytest.mark.slow
def test_the_sum_without_noise_is_out_of_reach():
    """An intruder's other memory of the release changes nothing that the algorithm shows."""
    algorithm = sends(lambda server, t: gradient(server[0]), reads=property(lambda self: Sum()))
    start = prepared(algorithm, noise="uniform")
    protocol, state = start.protocol, start.protocol.init(POOL, start.plan.size, KEY)
    other = state._replace(memory=state.memory._replace(q=jnp.full(POOL.start.shape, 7.0)))
    inputs, noise = jax.tree.map(lambda leaf: leaf[0], round_inputs(start.plan)), jnp.zeros(15)
    for shown in (
        protocol.output,
        protocol.rounds.query,
        protocol.iterates,
        protocol.rounds.broadcast,
        protocol.rounds.internal,
        lambda state: protocol.rounds.messages(POOL, state, inputs, noise, KEY),
    ):
        jax.tree.map(np.testing.assert_array_equal, shown(state), shown(other))


def test_serve_may_make_anything_of_releases():
    """It divides by whatever it likes: the guarantee is that of the messages, and the audit's claim is the same."""

    def serve(self, server, read, at):
        return jax.tree.map(lambda g: 1e6 * g / (at.t - 0.5), read), server[1]

    guarantees = [
        prepared(algorithm).guarantee.to_json()
        for algorithm in (sends(lambda server, t: gradient(server[0]), serve=serve), HeavyBall())
    ]
    assert guarantees[0] == guarantees[1]


# ---- metrics


def first_record(problem, snapshot):
    return problem.pool.features[0, 0]


def test_a_metric_that_is_a_record_is_not_covered_in_print():
    over = {"noise_std": [1.0]}
    method = Protocol(HeavyBall(), privacy=NoisyMessages(clip=CLIP), step_size=0.05)
    start = ready_sweep(method, POOL, SOME_MACHINES, over=over, rounds=2, seeds=1, metrics=[first_record])
    attributes = start.attributes()
    assert attributes["non_private_metrics"] == "first_record (not known)"
    shown = {"mine": xr.Dataset({"realised_epsilon": ("noise_std", [1.0])}, attrs=attributes)}
    assert "Metrics computed on private data: first_record (not known)." in not_covered(shown)
