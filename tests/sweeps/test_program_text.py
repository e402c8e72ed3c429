"""Identity of programs on disk: everything that a user's functions refer to, except host callbacks."""

import os
import subprocess
import sys
from types import ModuleType

import jax
import pytest
from cases import sparing

from fedprivjax.sweeps.chunk_store import program_text, sweep_fingerprint
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep

USERS = """
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import fedprivjax as fpj
from fedprivjax.protocols.noisy_sgd import SGD

POWER = 2.0
OFFSETS = np.float32([0.1, 0.2, 0.3])
MANY = np.arange(9000.0, dtype=np.float32)


def gap(w, z):
    return w - z


class Weighing:
    weight = 0.5

    def __call__(self, values):
        return self.weight * jnp.sum(values)


class Score(nn.Module):
    @nn.compact
    def __call__(self, z):
        return jnp.tanh(nn.Dense(1)(z))


class Half:
    @staticmethod
    def of(value):
        return value / 2


@flax.struct.dataclass
class Slower(SGD):
    def serve(self, server, read, at):
        return super().serve(server, jax.tree.map(lambda leaf: 0.75 * leaf, read), at)


@flax.struct.dataclass(kw_only=True)
class Own(fpj.MessagePrivacy):
    clip: float

    def mechanism(self, facts, method):
        return fpj.noise.Fresh(np.ones(facts.plan.size.rounds, np.float32))

    def event(self, facts, noise_std):
        takes_part = fpj.Grouped.of(facts.plan.schedule.total > 0)
        return fpj.GaussianEvent(noise_std, 1.0, takes_part, fpj.Terms("none", "made up"))

    def release(self, *arguments):
        released = super().release(*arguments)
        return released._replace(info={**released.info, "squared": jnp.float32(1.5)})


model = Score()
START = {"w": jnp.zeros(3), "net": model.init(jax.random.key(0), jnp.zeros(3))}
weigh = Weighing()


def loss(params, z):
    residual = weigh(jnp.abs(gap(params["w"], z)) ** POWER)
    score = model.apply(params["net"], z)[0]
    return residual * (1 + 1e-9 * jnp.sum(MANY)) + jnp.sum(params["w"] * OFFSETS) + score**2


def size(problem, snapshot):
    return Half.of(jnp.linalg.norm(snapshot.params["w"]))


problem = fpj.general_problem(loss, np.ones((24, 3), np.float32), START, constraint=fpj.Ball(5.0))
protocol = fpj.Protocol(Slower(), privacy=Own(clip=1.0), step_size=0.1)
settings = {"over": {"mu": [1.0, 2.0]}, "seeds": 2, "rounds": 4, "eval_every": 2, "metrics": [size, "squared"]}
"""

CHANGES = {
    "a global constant": ("POWER = 2.0", "POWER = 3.0"),
    "a helper's body": ("return w - z", "return w + z"),
    "a class body": ("weight = 0.5", "weight = 0.6"),
    "a method of a class": ("return self.weight * jnp.sum(values)", "return self.weight * jnp.mean(values)"),
    "a static method that a metric uses": ("return value / 2", "return value / 4"),
    "a flax module's call": ("jnp.tanh(nn.Dense", "jnp.sin(nn.Dense"),
    "a closed-over array's values": ("OFFSETS = np.float32([0.1, 0.2, 0.3])", "OFFSETS = np.float32([0.1, 0.2, 0.4])"),
    "a large closed-over array's values": ("MANY = np.arange(9000.0,", "MANY = 1 + np.arange(9000.0,"),
    "the metric itself": ("Half.of(jnp.linalg.norm", "Half.of(jnp.max"),
    "an algorithm's step": ("0.75 * leaf", "0.25 * leaf"),
    "a privacy object's release": ("jnp.float32(1.5)", "jnp.float32(2.5)"),
}
QUICK = ["a helper's body", "a closed-over array's values"]

PRINTED = """
from fedprivjax.sweeps.chunk_store import program_text, sweep_fingerprint
from fedprivjax.sweeps.prepare import ready_sweep
print(sweep_fingerprint(ready_sweep(protocol, problem, fpj.Uniform(6, 3), **settings)))
"""


def sweep_of(old="", new="", **settings):
    """A prepared sweep of the users' module after a change."""
    assert old in USERS
    module = sys.modules["users"] = ModuleType("users")  # where dataclasses look for the module of a class
    exec(compile(USERS.replace(old, new) if old else USERS, "users", "exec"), module.__dict__)
    options = {**module.settings, **settings}
    return ready_sweep(module.protocol, module.problem, module.fpj.Uniform(6, 3), **options)


@pytest.fixture(autouse=True)
def no_module_left():
    yield
    sys.modules.pop("users", None)


@pytest.fixture(scope="module")
def unchanged():
    return sweep_fingerprint(sweep_of())


@pytest.mark.parametrize("what", sparing(list(CHANGES), QUICK))
def test_a_change_in_what_a_users_function_refers_to_is_another_run(unchanged, what):
    assert sweep_fingerprint(sweep_of(*CHANGES[what])) != unchanged


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a closed-over array's values", "a large closed-over array's values"])
def test_a_closed_over_array_is_seen_where_jax_makes_an_argument_of_it(what):
    before = jax.config.values["jax_use_simplified_jaxpr_constants"]
    jax.config.update("jax_use_simplified_jaxpr_constants", True)
    try:
        assert sweep_fingerprint(sweep_of()) != sweep_fingerprint(sweep_of(*CHANGES[what]))
        assert jax.config.values["jax_use_simplified_jaxpr_constants"] is True
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)


def test_the_same_module_is_the_same_run_and_a_comment_makes_no_other(unchanged):
    assert sweep_fingerprint(sweep_of()) == unchanged
    assert sweep_fingerprint(sweep_of("class Half:", "class Half:  # of it")) == unchanged


@pytest.mark.slow
def test_two_processes_have_one_fingerprint(unchanged, tmp_path):
    script = tmp_path / "users.py"
    script.write_text(USERS + PRINTED)
    environment = {**os.environ, "PYTHONHASHSEED": "17"}
    answer = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    assert answer.stdout.split() == [unchanged]


CALLBACKS = {
    "pure_callback": "jax.pure_callback(np.linalg.norm, jax.ShapeDtypeStruct((), jnp.float32), snapshot.params['w'])",
    "io_callback": "io_callback(np.linalg.norm, jax.ShapeDtypeStruct((), jnp.float32), snapshot.params['w'])",
    "debug.callback": "[jax.debug.callback(print, 1.0), jnp.sum(snapshot.params['w'])][1]",
}


@pytest.mark.parametrize("call", sparing(list(CALLBACKS.values()), [CALLBACKS["debug.callback"]]), ids=CALLBACKS)
def test_a_program_that_calls_the_host_is_never_resumed(call):
    change = 'Half.of(jnp.linalg.norm(snapshot.params["w"]))', call
    sweep = sweep_of(*change)
    assert sweep_fingerprint(sweep) != sweep_fingerprint(sweep)  # the text cannot tell what is called


def test_the_name_of_a_metric_does_not_call_the_host():
    named = sweep_of('"metrics": [size, "squared"]', '"metrics": [fpj.Metric("size_callback", size), "squared"]')
    assert "size_callback" in program_text(named.arguments(0, 0), named.static)
    assert sweep_fingerprint(named) == sweep_fingerprint(named)


@pytest.mark.slow
def test_noise_made_on_the_host_is_told_apart():
    host_noise = "    def host_noise(self, plan, dimension, seed):\n        return np.full((plan.size.rounds, 3), {})\n"
    place = "class Own(fpj.MessagePrivacy):\n"
    one, other = (sweep_fingerprint(sweep_of(place, place + host_noise.format(value))) for value in (1.0, 2.0))
    assert one != other


@pytest.mark.slow
def test_results_of_another_run_are_not_used(tmp_path):
    whole = execute(sweep_of(), None, tmp_path)
    changed = execute(sweep_of(*CHANGES["a static method that a metric uses"]), None, tmp_path)
    assert (2 * changed["size"]).values == pytest.approx(whole["size"].values)
