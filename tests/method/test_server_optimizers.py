"""Server optimisers: post-processing, sweeps, transcripts, and refusals."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import PARTIAL, POOL, RECORD_CASES, SHARES, SOME_MACHINES
from oracles import optimizers

from fedprivjax import (
    FedAvg,
    LocalSGD,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    ServerOptimizer,
    Uniform,
    audit,
    calibrate,
    draw_plan,
    guarantee,
    guarantee_of,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.chunked_sums import mean_loss
from fedprivjax.engine.prepare import ready
from fedprivjax.method.server_checks import is_schedule
from fedprivjax.method.server_checks import optimizers as named
from fedprivjax.protocols import ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.sweeps.chunk_store import program_text
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.sweeps.intervals import of_iterate

ADAM = ServerOptimizer("adam", b1=0.8, b2=0.9)
LOCAL = {"batch": 3, "step_size": 0.5}
PLAIN = {
    "sgd": (NoisySGD(mu=1.0, clip=0.5), {}, POOL, SOME_MACHINES),
    "trusted": (NoisySGD(mu=1.0, trust="server"), {}, POOL, SOME_MACHINES),
    "minibatch": (NoisyMinibatchSGD(epsilon=2.0, sampler="full", clip=0.5), {}, SHARES, PARTIAL),
    "local": (LocalSGD(epsilon=4.0, sampler="disjoint", clip=0.5, **LOCAL), {"server_step": 0.1}, SHARES, PARTIAL),
}


def own_optimizer(learning_rate, gain=1.0):
    """Custom optimiser: a step along the sign of g, of length gain·(1 + |w|) in each coordinate."""

    def update(g, state, w):
        return -learning_rate * gain * jnp.sign(g) * (1.0 + jnp.abs(w)), state

    return optax.GradientTransformation(lambda w: (), update)


# ---- privacy


@pytest.mark.parametrize("name", PLAIN)
def test_guarantee_and_noise_are_those_of_the_plain_step(name):
    protocol, more, problem, participation = PLAIN[name]
    plan = draw_plan(problem, participation, 12, sampler=protocol.minibatches)
    one = calibrate(protocol, problem, plan, delta=1e-5)
    other = calibrate(replace(protocol, server=ADAM, **more), problem, plan, delta=1e-5)
    assert one.noise_std == other.noise_std > 0
    assert guarantee(one, problem, plan).to_json() == guarantee(other, problem, plan).to_json()


def test_the_view_holds_the_points_that_are_seen():
    """From the messages as they are sent, noise included, the optimiser in NumPy leads to the next point that is
    asked about, inside the set."""
    protocol = NoisySGD(mu=4.0, clip=0.5, step_size=0.05, server=ADAM)
    view = transcript(protocol, POOL, SOME_MACHINES, rounds=10, seed=1)
    w, stepped = np.zeros(15), optimizers.adam(0.8, 0.9)
    for query, messages in zip(view.queries, view.messages, strict=True):
        np.testing.assert_allclose(query, w, atol=1e-5)
        w = stepped(w, messages.mean(axis=0), 0.05)
        w = w * min(1.0, 1.0 / np.linalg.norm(w))
    np.testing.assert_allclose(np.ravel(view.params), w, atol=1e-5)
    assert np.linalg.norm(w) > 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_an_audit_finds_what_is_claimed_and_no_more():
    plain, served = (
        audit(NoisySGD(mu=2.0, clip=0.5, server=server), runs=4000, seed=1)
        for server in (None, ServerOptimizer("adam"))
    )
    assert served.guarantee.to_json() == plain.guarantee.to_json()
    assert 0.5 < served.tightness <= 1.0
    assert not served.refuted


# ---- steps


@pytest.mark.parametrize(
    ("server", "gain"),
    [
        (ServerOptimizer("sgd"), 1.0),
        (ServerOptimizer("sgd", momentum=0.9), np.mean((1 - 0.9 ** np.arange(1.0, 31)) / 0.1)),
        (ServerOptimizer("adam"), None),
        (ServerOptimizer("adagrad", initial_accumulator_value=0.0), None),
    ],
    ids=str,
)
def test_the_default_step_leads_as_far_along_a_constant_direction(server, gain):
    """√(1·d) for Adam, (1/T)·Σ 1/√t of it for AdaGrad, Σ βⁱ of g's norm for momentum."""
    plan = draw_plan(POOL, SOME_MACHINES, 30)
    plain, served = (calibrate(NoisySGD(mu=1.0, server=one), POOL, plan) for one in (None, server))
    norm = np.hypot(POOL.lipschitz, 15**0.5 * plain.noise_std / 2**0.5)
    each = np.sqrt(15) * (1.0 if server.name == "adam" else np.mean(1 / np.sqrt(np.arange(1, 31))))
    length = each / norm if gain is None else gain
    assert served.step_size == pytest.approx(plain.step_size / length, rel=1e-4)


def test_an_optimizer_without_an_answer_has_no_default_step():
    plan = draw_plan(POOL, SOME_MACHINES, 4)
    still = ServerOptimizer(lambda learning_rate: optax.set_to_zero())
    with pytest.raises(Refusal, match=r"step_size must be given with ServerOptimizer\(<lambda>\): along a constant"):
        calibrate(NoisySGD(mu=1.0, server=still), POOL, plan)


def test_without_a_learning_rate_updates_are_directions():
    w, g = jnp.array([1.0, -2.0]), jnp.array([3.0, 4.0])
    one, other = ServerOptimizer(optax.scale_by_adam, b1=0.8), ServerOptimizer("adam", b1=0.8)
    steps = [server.step(server.init(w, 0.1), w, g, 0.1)[0] for server in (one, other)]
    np.testing.assert_allclose(*steps, rtol=1e-6)


@pytest.mark.slow
def test_sgd_at_rate_one_is_the_mean_of_the_end_points():
    case = RECORD_CASES["local"]
    served = replace(case.protocol, server=ServerOptimizer("sgd"), server_step=1.0)
    one, other = (simulate(protocol, SHARES, PARTIAL, rounds=4, eval_every=4) for protocol in (case.protocol, served))
    np.testing.assert_allclose(one.params, other.params, atol=1e-6)


# ---- sweeps and programs


def test_numbers_are_leaves_and_the_factory_is_static():
    one, other = ServerOptimizer("adam", b1=0.8), ServerOptimizer(optax.adam, b1=0.9)
    assert jax.tree.structure(one) == jax.tree.structure(other) != jax.tree.structure(ServerOptimizer("yogi", b1=0.8))
    assert jax.tree.leaves(one) == [0.8]
    assert jax.tree.structure(ServerOptimizer("sgd", momentum=0.8, nesterov=True)) != jax.tree.structure(
        ServerOptimizer("sgd", momentum=0.8, nesterov=False)
    )
    assert jax.tree.map(lambda leaf: 2 * leaf, one) == ServerOptimizer("adam", b1=1.6)
    assert hash(one) == hash(ServerOptimizer("adam", b1=0.8))


@pytest.mark.slow
def test_sweeping_its_numbers_is_one_program():
    options = {"rounds": 8, "eval_every": 8, "metrics": ("test_loss",), "seeds": 2}
    blank = NoisySGD(mu=4.0, clip=0.5, step_size=0.1, server=ServerOptimizer("adam", b2=0.9))
    grid = sweep(blank, POOL, SOME_MACHINES, over={"server.b1": [0.0, 0.9]}, **options)
    before = run_chunk._cache_size()
    again = sweep(blank, POOL, SOME_MACHINES, over={"server.b1": [0.3, 0.6]}, **options)
    assert run_chunk._cache_size() == before
    assert np.ptp([*grid.test_loss.isel(seed=0).values.ravel(), *again.test_loss.isel(seed=0).values.ravel()]) > 1e-3
    alone = simulate(
        replace(blank, server=blank.server.with_values({"b1": 0.9})), POOL, SOME_MACHINES, seed=1, **_of_run(options)
    )
    cell = of_iterate(grid.test_loss).sel({"server.b1": 0.9, "seed": 1})
    np.testing.assert_allclose(cell, alone.metrics["test_loss"], rtol=1e-5)
    assert guarantee_of(grid.sel({"server.b1": 0.9})).mu == pytest.approx(4.0, rel=1e-5)


@pytest.mark.slow
def test_a_schedule_is_a_step_of_the_round_and_does_not_recompile():
    """A transcript follows a loop by hand, and a sweep ends where the loop does."""
    make = partial(FedAvg, local_steps=2, batch=3, step_size=0.5, server=ServerOptimizer("sgd", momentum=0.9))
    method = make(server_step=optax.exponential_decay(0.8, 2, 0.5))
    view = transcript(method, SHARES, PARTIAL, rounds=5, seed=1)
    w, speed = np.zeros(3), np.zeros(3)
    for number, (query, messages) in enumerate(zip(view.queries, view.messages, strict=True)):
        np.testing.assert_allclose(query, w, atol=1e-5)
        speed = messages.mean(axis=0) + 0.9 * speed
        w = w + 0.8 * 0.5 ** (number / 2) * speed
        w = w / max(1.0, np.linalg.norm(w) / 1.5)
    options = {
        "over": {"step_size": [0.1, 0.5]},
        "seeds": [1],
        "rounds": 5,
        "eval_every": 5,
        "metrics": ("train_loss",),
    }
    grid = sweep(method, SHARES, PARTIAL, **options)
    loss = mean_loss(SHARES, jnp.asarray(w, jnp.float32), SHARES.pool)
    np.testing.assert_allclose(grid.train_loss.sel(step_size=0.5).values.ravel(), loss, rtol=1e-5)
    before = run_chunk._cache_size()
    other = sweep(make(server_step=optax.cosine_decay_schedule(0.1, 5)), SHARES, PARTIAL, **options)
    assert run_chunk._cache_size() == before
    assert (abs(other.train_loss - grid.train_loss) > 1e-3).all()


def _of_run(options):
    return {name: value for name, value in options.items() if name != "seeds"}


@pytest.mark.slow
def test_two_processes_would_write_the_same_program():
    texts = {
        program_text(start.arguments, start.static)
        for start in (
            ready(NoisySGD(mu=4.0, step_size=0.1, server=ServerOptimizer(factory)), POOL, SOME_MACHINES, rounds=2)
            for factory in (partial(optax.adam, b1=0.8), lambda learning_rate: optax.adam(learning_rate, b1=0.8))
        )
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"server.beta1": [0.1]}, "unknown swept setting 'server.beta1', did you mean 'server.b1'"),
        ({"server": [0.5]}, "over must name settings that can be swept"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_axes_that_it_has_not_are_refused(over, message):
    with pytest.raises(Refusal, match=message):
        sweep(NoisySGD(mu=1.0, server=ADAM), POOL, SOME_MACHINES, over=over)


def test_every_optimizer_of_optax_that_needs_gradients_alone_runs():
    """Except optimisers that need the loss or required settings."""
    refused = set()
    for name in named().keys() - {"noisy_sgd"}:  # which warns that it wants a key
        if is_schedule(named()[name]):
            continue
        try:
            ServerOptimizer(name).check(POOL.start)
        except Refusal:
            refused.add(name)
    assert refused == {"lbfgs", "optimistic_adam"}


# ---- refusals


def stateful(state, update=None):
    """A factory with the given state."""
    return lambda learning_rate: optax.GradientTransformation(
        lambda w: state, update or (lambda g, state, w: (g, state))
    )


def branching(learning_rate, gain=1.0):
    return optax.scale(learning_rate if gain > 0 else -learning_rate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServerOptimizer("adm"), "unknown optimiser 'adm', did you mean 'adam'"),
        (lambda: ServerOptimizer("adam", epsilon=0.9), "unknown setting of adam 'epsilon', did you mean 'eps'"),
        (lambda: ServerOptimizer("adam", learning_rate=0.1), "learning_rate must be left out of an optimiser"),
        (lambda: ServerOptimizer("adam", b1=float("nan")), "b1 of adam must be finite, got nan"),
        (lambda: ServerOptimizer("adam", b1=[0.9]), "b1 of adam must be a number, a flag or a name, got a list"),
        (lambda: ServerOptimizer(optax.adam(0.1), b1=0.5), "unknown setting of transformation 'b1'"),
        (lambda: ServerOptimizer(3), "optimiser must be an optax transformation, its factory or name, got 3"),
        (lambda: ServerOptimizer(optax.clip), "optimiser clip must be given its settings, got no 'max_delta'"),
        (lambda: NoisySGD(server=optax.clip), "optimiser clip must be given its settings, got no 'max_delta'. Set it"),
        (
            lambda: ReleasedLocalSGD(local="adam", noise_std=1.0),
            r"local must be left out: the released code has no optimiser, got ServerOptimizer\(adam\)",
        ),
        (lambda: NoisySGD(server="adm"), r"unknown optimiser 'adm', did you mean 'adam'\? \(known: adabelief, .*yogi"),
        (lambda: NoisySGD(server=3), "server must be an optax transformation, its factory or its name, got 3"),
        (lambda: NoisySGD(server=(1, 2)), "optimiser must be an optax transformation, .* got a tuple"),
        (lambda: ReleasedMinibatchSGD(batch=1, server=ADAM), "server must be left out: the released code"),
        (lambda: ReleasedLocalSGD(batch=1, server=ADAM), "server must be left out: the released code"),
        (lambda: LocalSGD(server_step=-1.0, **LOCAL), "server_step must be positive, got -1.0"),
    ],
)
def test_settings_that_it_has_not_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (stateful(object()), "state of optimiser <lambda> must be a pytree of arrays, got an object"),
        (stateful("a"), "state of optimiser <lambda> must be a pytree of arrays, got 'a'"),
        (
            stateful(np.zeros(2), lambda g, s, w: (g, np.zeros(3))),
            r"state of .* must keep its structure and shapes .*, got float\d\d\[3\] after float\d\d\[2\]$",
        ),
        (
            stateful((), lambda g, s, w: (g.sum(), s)),
            r"updates of .* must have the parameters' shape, \(3, 5\), got float32\[\]$",
        ),
        (stateful((), lambda g, s, w: (g @ w, s)), r"<lambda> must take parameters of shape \(3, 5\), got TypeError: "),
        (optax.lbfgs, r"lbfgs must take parameters of shape \(3, 5\), got TypeError: .*value"),
        (lambda learning_rate: "adam", "optimiser <lambda> must return a GradientTransformation, got 'adam'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_is_compiled(factory, message):
    with pytest.raises(Refusal, match=message) as raised:
        ready(NoisySGD(mu=1.0, step_size=0.1, server=ServerOptimizer(factory)), POOL, SOME_MACHINES)
    assert "\n" not in str(raised.value)


def test_a_factory_that_branches_on_a_number_is_refused():
    server = ServerOptimizer(branching, gain=2.0)
    with pytest.raises(Refusal, match=r"branching must take parameters of shape .*, got TracerBoolConversionError"):
        ready(NoisySGD(mu=1.0, step_size=0.1, server=server), POOL, SOME_MACHINES)
    fixed = ServerOptimizer(partial(branching, gain=2.0))
    assert ready(NoisySGD(mu=1.0, step_size=0.1, server=fixed), POOL, SOME_MACHINES).guarantee.mu <= 1.0


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (
            LocalSGD(server=ADAM, noise_std=1.0, **LOCAL),
            "server and server_step must be given together, got only server",
        ),
        (LocalSGD(server_step=1.0, noise_std=1.0, **LOCAL), "must be given together, got only server_step"),
        (
            NoisyMinibatchSGD(noise_std=1.0, batch=1, strong_convexity=0.1, server=ADAM),
            "strong_convexity must be 0 with a server optimiser, .* got 0.1",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(protocol, message):
    with pytest.raises(Refusal, match=message):
        ready(protocol, SHARES, Uniform(4, 2), rounds=3)


def test_one_of_ones_own_is_run():
    protocol = NoisySGD(mu=4.0, clip=0.5, step_size=0.02, server=ServerOptimizer(own_optimizer, gain=0.5))
    view = transcript(protocol, POOL, SOME_MACHINES, rounds=3)
    w = np.zeros(15)
    for messages in view.messages:
        w = w - 0.01 * np.sign(messages.mean(axis=0)) * (1 + np.abs(w))
    np.testing.assert_allclose(np.ravel(view.params), w, atol=1e-6)
