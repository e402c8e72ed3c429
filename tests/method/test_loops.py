import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax.method.loops import scan_in_chunks, vmapped

XS = {"a": np.arange(1.0, 12.0, dtype=np.float32), "b": np.arange(22, dtype=np.int32).reshape(11, 2)}


def step(carry, chunk):
    """Not commutative in the order of the chunks, and sensitive to how they are cut."""
    carry = 0.5 * carry + jnp.sum(chunk["a"])
    return carry, {"carry": carry, "last": chunk["b"][-1]}


def by_hand(function, carry, xs, size):
    ys = []
    for start in range(0, 11, size):
        carry, y = function(carry, jax.tree.map(lambda leaf, at=start: leaf[at : at + size], xs))
        ys.append(y)
    return carry, jax.tree.map(lambda *parts: np.stack(parts), *ys)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 10, 11, 12, 100])
def test_equals_a_python_loop(size):
    carry, ys = scan_in_chunks(step, jnp.float32(1.0), XS, size)
    expected_carry, expected = by_hand(step, jnp.float32(1.0), XS, size)
    np.testing.assert_allclose(carry, expected_carry, rtol=1e-6)
    assert ys["last"].shape == (-(-11 // size), 2)
    np.testing.assert_allclose(ys["carry"], expected["carry"], rtol=1e-6)
    np.testing.assert_array_equal(ys["last"], expected["last"])


@pytest.mark.parametrize("size", [2, 11, 30])
def test_jit_equals_eager(size):
    eager = scan_in_chunks(step, jnp.float32(1.0), XS, size)
    jitted = jax.jit(lambda carry, xs: scan_in_chunks(step, carry, xs, size))(jnp.float32(1.0), XS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), eager, jitted)


@pytest.mark.parametrize(("size", "lengths"), [(1, {1}), (2, {2, 1}), (5, {5, 1}), (11, {11}), (12, {11})])
def test_whole_chunks_are_one_scan_and_the_rest_is_seen_once_more(size, lengths):
    seen = []

    def watched(carry, chunk):
        seen.append(chunk["a"].shape[0])
        return step(carry, chunk)

    jax.make_jaxpr(lambda carry, xs: scan_in_chunks(watched, carry, xs, size))(jnp.float32(1.0), XS)
    assert sorted(seen) == sorted(lengths)


def test_outputs_may_be_absent():
    carry, ys = scan_in_chunks(lambda total, chunk: (total + chunk.sum(), ()), 0, jnp.arange(5), 2)
    assert (int(carry), ys) == (10, ())


@pytest.mark.parametrize("length", [1, 3])
def test_an_axis_of_length_one_is_left_out(length):
    """The function sees no batch of one machine, which XLA would copy in every step of a loop."""

    def function(machine, shared):
        return {"product": machine["w"] @ shared, "constant": 1.0}

    arguments = {"w": jnp.arange(4.0 * length).reshape(length, 2, 2)}, jnp.ones((2, 2))
    of_all = vmapped(function, (0, None))
    jax.tree.map(np.testing.assert_array_equal, of_all(*arguments), jax.vmap(function, (0, None))(*arguments))
    product = next(one for one in jax.make_jaxpr(of_all)(*arguments).eqns if one.primitive.name == "dot_general")
    assert product.outvars[0].aval.ndim == (2 if length == 1 else 3)
