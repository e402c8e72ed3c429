"""A fixture that makes groups of measurements small."""

import jax
import pytest

from fedprivjax.bench.timing import AT_MOST


@pytest.fixture
def measured_once(monkeypatch):
    """Return a function that makes every measurement one of small sizes, in this process and not optimised.

    Its arguments are the sizes by module, and the cached functions that depend on them.
    """
    cleared = []

    def apply(sizes, cached):
        jax.config.update("jax_disable_most_optimizations", True)
        monkeypatch.setenv(AT_MOST, "1")
        for module, values in sizes.items():
            for name, value in values.items():
                monkeypatch.setattr(module, name, value)
            if hasattr(module, "in_a_process"):
                monkeypatch.setattr(module, "in_a_process", lambda function, *arguments, **_: function(*arguments))
        cleared.extend(cached)
        for function in cached:
            function.cache_clear()

    yield apply
    for function in cleared:
        function.cache_clear()
