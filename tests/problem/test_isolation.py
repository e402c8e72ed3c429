"""Isolation in private runs: functions of one machine or record that reach others, or the host, are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.experimental import io_callback

from fedprivjax import (
    Encoder,
    FedAvg,
    Full,
    LocalEpochs,
    LocalPrivacy,
    Logistic,
    NoisyMessages,
    NoisyMinibatchSGD,
    Protocol,
    Refusal,
    general_problem,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.engine.transcript import replay
from fedprivjax.problem.program import isolated
from fedprivjax.protocols.fedavg import LocalGradientSteps
from fedprivjax.protocols.noisy_sgd import SGD

MACHINES = 3
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(MACHINES, 4, 3)).astype(np.float32), RNG.integers(0, 2, (MACHINES, 4))
PROBLEM = linear_problem(X, Y, Logistic(), feature_bound=10.0)
WORK, STEP = LocalEpochs(1, 2), {"step_size": 0.5}
PRIVATE = LocalPrivacy(work=WORK, unit="machine", update_clip=0.3, trust="none")
SEEN = []


@custom_vmap
def shared(x):
    """The value of the first of all machines."""
    return x


@shared.def_vmap
def _(size, batched, x):
    return jnp.broadcast_to(x[:1], x.shape), True


def inside_a_loop(x):
    return jax.lax.fori_loop(0, 2, lambda _, x: jax.jit(shared)(x), x)


def observed(x):
    jax.debug.callback(SEEN.append, x)
    return x


def on_one_branch(x):
    return jax.lax.cond(jnp.sum(x) > 0, observed, lambda x: x, x)


def over_devices(x):
    return jax.lax.psum(x, "machines")


def asked_of_the_host(x):
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def told_in_order(x):
    return io_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


BATCHING = "Write the function without custom_vmap"
CALLBACK, COLLECTIVE = "Remove it; metrics and iterates show", "Remove it; sums over machines are those"
REACHING = {
    "custom_vmap": (shared, "custom_vmap_call", BATCHING),
    "sequential_vmap": (sequential_vmap(lambda x: x + 0), "custom_vmap_call", BATCHING),
    "in a loop": (inside_a_loop, "custom_vmap_call", BATCHING),
    "debug.callback": (observed, "debug_callback", CALLBACK),
    "on a branch": (on_one_branch, "debug_callback", CALLBACK),
    "pure_callback": (asked_of_the_host, "pure_callback", CALLBACK),
    "io_callback": (told_in_order, "io_callback", CALLBACK),
    "psum": (over_devices, "psum", COLLECTIVE),
    "pmax": (lambda x: jax.lax.pmax(x, "machines"), "pmax", COLLECTIVE),
    "over runs": (lambda x: jax.lax.pmin(x, "runs"), "pmin", COLLECTIVE),
    "all_gather": (lambda x: jax.lax.all_gather(x, "machines").sum(axis=0), "all_gather", COLLECTIVE),
    "scatter": (lambda x: jax.lax.psum_scatter(x, "machines", tiled=True), "reduce_scatter", COLLECTIVE),
    "ppermute": (lambda x: jax.lax.ppermute(x, "machines", [(0, 0)]), "ppermute", COLLECTIVE),
    "axis_index": (lambda x: x * jax.lax.axis_index("machines"), "axis_index", COLLECTIVE),
}


@pytest.mark.parametrize("name", REACHING)
def test_a_function_that_reaches_beyond_its_arguments_is_refused(name):
    function, primitive, remedy = REACHING[name]
    said = f"^move of Mine must compute .* in a private run, got the primitive '{primitive}'. {remedy}"
    with pytest.raises(Refusal, match=said) as refusal:
        jax.eval_shape(lambda x: isolated(function, x, name="move of Mine"), jnp.ones(3))
    assert "\n" not in str(refusal.value)


def test_other_functions_are_computed_as_they_are():
    def step(tree, scale):
        return {"sum": scale * tree["a"] + tree["b"], "none": None, "two": 2.0}

    def both(a, b):
        plain = step({"a": a, "b": b}, 3.0)
        return plain, isolated(step, {"a": a, "b": b}, 3.0, name="step")

    plain, same = jax.jit(jax.vmap(both, in_axes=(0, None)))(jnp.arange(6.0).reshape(2, 3), jnp.ones(3))
    assert jax.tree.structure(plain) == jax.tree.structure(same)
    jax.tree.map(np.testing.assert_array_equal, plain, same)


# ---- algorithms


@struct.dataclass
class Reaching(LocalGradientSteps):
    """Local gradient steps, of which one function reaches further."""

    where: str = struct.field(pytree_node=False, default="move")
    reach: Any = struct.field(pytree_node=False, default=shared)
    before: int = struct.field(pytree_node=False, default=0)
    calls: Any = struct.field(pytree_node=False, default_factory=list)

    def _through(self, name, value):
        self.calls.append(name)
        if name != self.where or self.calls.count(name) <= self.before:
            return value
        return jax.tree.map(self.reach, value)

    def init(self, public, step):
        return self._through("init", super().init(public, step))

    def sends(self, server):
        return self._through("sends", super().sends(server))

    def own(self, public):
        return self._through("own", jnp.zeros(3))

    def enter(self, received, own):
        return self._through("enter", super().enter(received, own))

    def ask(self, carry):
        return self._through("ask", super().ask(carry))

    def move(self, carry, g, received, own, work):
        return self._through("move", super().move(carry, g, received, own, work))

    def leave(self, carry, received, own, work):
        return self._through("leave", super().leave(carry, received, own, work))

    def keep(self, own, message, work):
        return self._through("keep", message)

    def serve(self, server, mean, at):
        return self._through("serve", super().serve(server, mean, at))

    def point(self, server):
        return self._through("point", super().point(server))

    def iterates(self, server):
        return self._through("iterates", {"last": server.w})


FUNCTIONS = ["init", "sends", "own", "enter", "ask", "move", "leave", "keep", "serve", "point", "iterates"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_of_an_algorithm_is_isolated_before_anything_compiles(name, monkeypatch):
    method = Protocol(Reaching(where=name), privacy=PRIVATE, noise_std=1.0, **STEP)
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    with pytest.raises(Refusal, match=rf"^{name} of Reaching must compute .* got the primitive 'custom_vmap_call'"):
        ready(method, PROBLEM, Full(MACHINES), rounds=2)


def messages(method, where=PROBLEM):
    start = ready(method, where, Full(MACHINES), rounds=1, seed=1, noise_method="materialised")
    return np.asarray(replay(start.arguments, start.plan.size)[1][1])[0]


def test_one_machine_would_move_the_message_of_another():
    """The planted fault, in a run without a protected unit: all machines send the first one's update."""
    silent = Protocol(Reaching(), privacy=LocalPrivacy(work=WORK), **STEP)
    sent = messages(silent)
    assert len(np.unique(sent, axis=0)) == 1
    x = X.copy()
    x[0] *= -3
    assert not np.allclose(messages(silent, linear_problem(x, Y, Logistic()))[1], sent[1])
    with pytest.raises(Refusal, match=r"^move of Reaching must compute"):
        messages(Protocol(Reaching(), privacy=PRIVATE, noise_std=1e-9, **STEP))


@pytest.mark.parametrize("name", ["move", "leave", "keep", "serve"])
def test_a_function_that_reaches_further_only_in_the_run_is_refused(name):
    """It does not in the first calls, when it is read."""
    counted = Reaching(where=name, before=10**6)
    method = Protocol(counted, privacy=PRIVATE, noise_std=1.0, **STEP)
    ready(method, PROBLEM, Full(MACHINES), rounds=2, metrics=[])
    read = counted.calls.count(name)
    later = Protocol(Reaching(where=name, before=read), privacy=PRIVATE, noise_std=1.0, **STEP)
    with pytest.raises(Refusal, match=f"^{name} of Reaching must compute"):
        simulate(later, PROBLEM, Full(MACHINES), rounds=2, metrics=[])


def test_a_sum_over_the_devices_of_a_mesh_is_refused():
    mesh = jax.make_mesh((1,), ("machines",), devices=jax.devices()[:1])
    method = Protocol(Reaching(reach=over_devices), privacy=PRIVATE, noise_std=1.0, **STEP)
    with pytest.raises(Refusal, match=r"^move of Reaching must compute .* got the primitive 'psum'"):
        ready(method, PROBLEM, Full(MACHINES), rounds=2, mesh=mesh)
    minibatches = NoisyMinibatchSGD(batch=2, clip=0.3, noise_std=1.0, **STEP)
    with pytest.raises(Refusal, match=r"^the loss must compute .* got the primitive 'psum'"):
        ready(minibatches, LOSSES["psum"], Full(MACHINES), rounds=2, mesh=mesh)


@struct.dataclass
class Served(SGD):
    """Noisy SGD's server, which mixes the configurations of a sweep."""

    def serve(self, server, read, at):
        return jax.tree.map(shared, super().serve(server, read, at))


def test_servers_of_other_algorithms_are_isolated():
    """Configurations share their noise, so that a difference of two has none."""
    method = Protocol(Served(), privacy=NoisyMessages(clip=1.0), epsilon=1.0, **STEP)
    with pytest.raises(Refusal, match=r"^serve of Served must compute .* got the primitive 'custom_vmap_call'"):
        simulate(method, PROBLEM, Full(MACHINES), rounds=1)


def test_without_a_protected_unit_a_callback_is_run():
    SEEN.clear()
    method = Protocol(Reaching(reach=observed), privacy=LocalPrivacy(work=WORK), **STEP)
    simulate(method, PROBLEM, Full(MACHINES), rounds=1, metrics=[])
    jax.effects_barrier()
    assert len(SEEN) >= MACHINES


# ---- losses and encoders


class Mixed(Logistic):
    """The gradient of the first of all records."""

    lipschitz, smoothness = Logistic.lipschitz, Logistic.smoothness

    def residual(self, score, label):
        return shared(super().residual(score, label))


def observing(params, example):
    x, y = example
    return observed(jnp.logaddexp(0.0, -y * (x @ params)))


def summed_over_devices(params, example):
    """A sum over the machines of a mesh, where there is one: a record moved the messages of all of its devices."""
    x, y = example
    value = jnp.logaddexp(0.0, -y * (x @ params))
    try:
        return over_devices(value)
    except NameError:  # without a mesh
        return value


RECORDS = (X.reshape(-1, 3), 2.0 * Y.reshape(-1) - 1)
OWNED: dict[str, Any] = {"start": np.zeros(3), "partition_table": np.arange(12).reshape(3, 4)}
LOSSES = {
    "custom_vmap_call": linear_problem(X, Y, Mixed()),
    "psum": general_problem(summed_over_devices, RECORDS, **OWNED),
    "debug_callback": general_problem(observing, RECORDS, **OWNED),
}


@pytest.mark.parametrize("primitive", LOSSES)
@pytest.mark.parametrize(
    "method",
    [
        FedAvg(unit="record", clip=0.3, noise_std=1.0, local_epochs=1, batch=2, **STEP),
        NoisyMinibatchSGD(batch=2, clip=0.3, noise_std=1.0, **STEP),
    ],
    ids=str,
)
def test_a_loss_that_reaches_further_is_refused(method, primitive):
    with pytest.raises(Refusal, match=f"^the loss must compute .* got the primitive '{primitive}'"):
        ready(method, LOSSES[primitive], Full(MACHINES), rounds=2)
    ready(method.replace(noise_std=0.0), LOSSES[primitive], Full(MACHINES), rounds=2, metrics=[])


class Averaging(Encoder):
    """The first machine's message for all."""

    def encode(self, message, key):
        return shared(message)

    def bits(self, dimension):
        return 32.0 * dimension

    def norm_bound(self, norm, dimension):
        return norm


def test_an_encoder_that_reaches_further_is_refused():
    method = FedAvg(
        unit="machine", update_clip=0.3, noise_std=1.0, encoder=Averaging(), local_epochs=1, batch=2, **STEP
    )
    with pytest.raises(Refusal, match=r"^encode of Averaging must compute .* got the primitive 'custom_vmap_call'"):
        simulate(method, PROBLEM, Full(MACHINES), rounds=2)
