"""The checker and the implementations by hand, imported as a user's script imports them."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments/vectors"
NAMES = ("check_vectors", "dp_mu2_numpy", "dp_mu2_wrong")


@pytest.fixture(scope="module")
def modules():
    """The checker, DP-mu2-FL in NumPy, and its errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for name in NAMES:
            patch.delitem(sys.modules, name, raising=False)
        yield [importlib.import_module(name) for name in NAMES]
        for name in NAMES:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def tools(modules):
    """The checker, and the gradients, clip and projection of dp_mu2_numpy.py."""
    return modules[:2]
