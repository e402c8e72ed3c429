import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax.checks.values import require_at_least, require_choice, require_positive


def refusal(function, *args, **kwargs):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        function(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, "step must be positive, got -1.0"),
        (0, "step must be positive, got 0"),
        (np.float32(-0.5), "step must be positive, got -0.5"),
        (np.int64(0), "step must be positive, got 0"),
        (np.nan, "step must be positive, got nan"),
        (-np.inf, "step must be positive, got -inf"),
        (np.inf, "step must be finite, got inf"),
        (None, "step must be a positive number, got None"),
        ("1", "step must be a positive number, got '1'. Remove the quotes"),
        (True, "step must be a positive number, got True"),
        ([1.0], "step must be a positive number, got [1.0]"),
    ],
)
def test_what_is_not_positive_is_refused(value, message):
    assert refusal(require_positive, "step", value) == message


@pytest.mark.parametrize("value", [1, 1e-30, np.float32(2.0), np.int64(3), object(), jnp.float32(1.0)])
def test_positive_numbers_and_placeholders_pass(value):
    require_positive("step", value)


def test_none_and_infinity_pass_where_they_are_allowed():
    require_positive("mu", None, optional=True)
    require_positive("mu", np.inf, infinite=True)
    assert refusal(require_positive, "mu", -np.inf, infinite=True) == "mu must be positive, got -inf"
    assert refusal(require_positive, "mu", np.nan, infinite=True) == "mu must be positive, got nan"


def test_traced_values_pass():
    def traced(value):
        require_positive("step", value)
        return value

    assert float(jax.jit(traced)(-1.0)) == -1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "rounds must be at least 1, got 0"),
        (-3, "rounds must be at least 1, got -3"),
        (1.0, "rounds must be an integer, got 1.0"),
        ("2", "rounds must be an integer, got '2'. Remove the quotes"),
        (True, "rounds must be an integer, got True"),
        (None, "rounds must be an integer, got None"),
    ],
)
def test_integers_below_the_least_are_refused(value, message):
    assert refusal(require_at_least, "rounds", value, 1) == message


@pytest.mark.parametrize("value", [1, 7, np.int32(1), np.int64(10**12)])
def test_integers_from_the_least_on_pass(value):
    require_at_least("rounds", value, 1)


def test_an_unknown_name_is_refused_with_the_nearest():
    names = ["server", "none"]
    assert refusal(require_choice, "trust", "sever", names) == (
        "unknown trust 'sever', did you mean 'server'? (known: server, none)"
    )
    assert refusal(require_choice, "trust", "xyz", names) == "unknown trust 'xyz' (known: server, none)"
    many = [f"figure{k}" for k in range(40)]
    assert refusal(require_choice, "experiment", "figur7", many) == (
        "unknown experiment 'figur7', did you mean 'figure7'? (nearest: figure7, figure37, figure27)"
    )
    assert refusal(require_choice, "experiment", "xyz", many).count(", ") == 2  # three names, and none suggested
    assert refusal(require_choice, "trust", 3, iter(names)) == "unknown trust 3 (known: server, none)"
    for name in names:
        require_choice("trust", name, iter(names))
