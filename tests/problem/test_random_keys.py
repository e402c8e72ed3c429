"""Random numbers do not depend on jax's settings, which may come from the environment."""

from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

import fedprivjax
from fedprivjax import MLP, Ball, Full, NoisySGD, Refusal, Softmax, Squared, linear_problem, ready
from fedprivjax.problem.networks import first_parameters, ready_network
from fedprivjax.problem.random_keys import SETTINGS, random_key, random_settings

PROBLEM = linear_problem(np.eye(4, 3), np.ones(4), Squared(), constraint=Ball(1.0))
NETWORK = ready_network(MLP((2,)), Softmax(2))
METHOD = NoisySGD(noise_std=1.0, clip=1.0, step_size=0.1)


@contextmanager
def setting(name, value):
    """Change a setting of jax within a block, as an environment variable does from the start."""
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


def test_keys_are_of_one_generator():
    before = jax.random.key_data(ready(METHOD, PROBLEM, Full(2), rounds=1).key)
    start = first_parameters(NETWORK, (3,), 0)
    with setting("jax_default_prng_impl", "rbg"):
        after = ready(METHOD, PROBLEM, Full(2), rounds=1).key
        again = first_parameters(NETWORK, (3,), 0)
        assert jax.random.key_impl(jax.random.key(0)) == "rbg"
    assert str(jax.random.key_impl(after)) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.key_data(after), before)
    jax.tree.map(np.testing.assert_array_equal, again, start)


def test_no_key_is_made_elsewhere():
    package = Path(fedprivjax.__file__).parent
    lines = [(file, line) for file in package.rglob("*.py") for line in file.read_text().splitlines()]
    made = [(file.name, line) for file, line in lines if "random.key(" in line or "PRNGKey" in line]
    assert {file for file, line in made if not line.lstrip().startswith((">>>", "..."))} == {"random_keys.py"}


def refused(name, needed, value, why):
    message = rf"^{name} must be {needed}, got {value}: {why}\. Unset {name.upper()} in the environment$"
    with setting(name, value):
        with pytest.raises(Refusal, match=message):
            ready(METHOD, PROBLEM, Full(2), rounds=1)
        with pytest.raises(Refusal, match=message):
            first_parameters(NETWORK, (3,), 0)


def test_strict_types_are_refused():
    refused("jax_numpy_dtype_promotion", "standard", "strict", "programs mix types of numbers")


@pytest.mark.parametrize(("name", "value"), [("jax_random_seed_offset", 7), ("jax_threefry_partitionable", False)])
def test_settings_that_change_random_numbers_are_refused(name, value):
    with setting(name, value):
        assert random_settings()[name] == value
    refused(name, SETTINGS[name], value, "noise and starting points depend on it")
    assert ready(METHOD, PROBLEM, Full(2), rounds=1)
    assert random_key(3).dtype == jax.random.key(3).dtype


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1, 2**40 + 3, -1])
def test_key_of_an_integer_is_jaxs(seed):
    expected = jax.random.key(seed, impl="threefry2x32")
    assert random_key(seed).dtype == expected.dtype
    np.testing.assert_array_equal(jax.random.key_data(random_key(seed)), jax.random.key_data(expected))
