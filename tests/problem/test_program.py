"""Programs never confuse classes whose pytrees have equal structures."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

import fedprivjax
from fedprivjax import Ball, L1Ball
from fedprivjax.noise.binomial import LiteralBits, RoundedNormal
from fedprivjax.problem.program import classes_of, typed_jit
from fedprivjax.protocols.noisy_sgd import SGD

PLAIN = {  # files whose compiled functions take arrays only, or are compiled anew for every object
    "bench/accelerator.py",
    "bench/fedavg.py",
    "auditing/one_run.py",
    "datasets/stream.py",
    "features/mapped.py",
    "problem/networks.py",
    "problem/program.py",
    "testing/devices.py",
    "testing/releases.py",
    "testing/trial.py",
}


@struct.dataclass(kw_only=True)
class Doubled(SGD):
    """A subclass with the same fields."""

    def point(self, server):
        return jax.tree.map(lambda leaf: 2 * leaf, super().point(server))


PAIRS = [
    (Ball(1.0), L1Ball(1.0)),
    (SGD(), Doubled()),
    (RoundedNormal(jnp.ones(3)), LiteralBits(jnp.ones(3))),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_classes_are_told_apart(one, other):
    first, second = (classes_of(jax.tree.structure(thing)) for thing in (one, other))
    assert first == classes_of(jax.tree.structure(one))
    assert first != second


def test_numbers_are_not_part_of_the_classes():
    first, second = (classes_of(jax.tree.structure({"set": Ball(radius)})) for radius in (1.0, 2.0))
    assert first == second


def pair():
    """Two new classes of equal structure, whose values differ."""

    @struct.dataclass
    class One:
        number: Any

        def value(self):
            return self.number

    @struct.dataclass
    class Two:
        number: Any

        def value(self):
            return 2 * self.number

    return One(jnp.float32(1.0)), Two(jnp.float32(1.0))


@pytest.mark.slow
def test_no_program_of_another_class_is_run():
    for _ in range(400):  # jax.jit of jax 0.10.1 runs the wrong program about 8 times
        value = typed_jit(lambda thing: thing.value())
        one, two = pair()
        assert (float(value(one)), float(value(two))) == (1.0, 2.0)


def test_new_numbers_do_not_recompile_and_static_arguments_do():
    @typed_jit(static_argnames="times")
    def value(thing, times=1, *, shift=None):
        return times * thing.radius + (0.0 if shift is None else shift)

    assert float(value(Ball(1.0), 3)) == 3.0
    assert float(value(Ball(2.0), times=3)) == 6.0
    assert value._cache_size() == 1
    assert float(value(thing=Ball(2.0), times=2, shift=1.0)) == 5.0
    assert value._cache_size() == 2
    assert "stablehlo" in value.lower(Ball(2.0), 3).as_text()


def test_the_package_compiles_functions_of_objects_by_class():
    root = Path(fedprivjax.__file__).parent
    plain = {str(path.relative_to(root)) for path in root.rglob("*.py") if re.search(r"\bjax\.jit\b", path.read_text())}
    assert plain == PLAIN
