"""Every method on an accelerator against the CPU: `JAX_PLATFORMS=cuda,cpu pytest -m accelerator --numprocesses=0`."""

import jax
import pytest

from fedprivjax.testing.device_cases import cases
from fedprivjax.testing.devices import Computer, compare, compare_case, cpu

pytestmark = [pytest.mark.accelerator, pytest.mark.optimised]


def pytest_generate_tests(metafunc):
    """Parametrise with the cases, whose preparation takes seconds, only if these tests are selected."""
    if "case" in metafunc.fixturenames:
        selected = metafunc.config.option.markexpr
        chosen = "accelerator" in selected and "not accelerator" not in selected
        metafunc.parametrize("case", cases() if chosen else [], ids=lambda case: case.label)


@pytest.fixture(scope="module")
def accelerator():
    device = jax.devices()[0]
    if device.platform == "cpu":
        pytest.skip("jax found no accelerator")
    return Computer(device)


@pytest.fixture(scope="module")
def reference():
    return cpu()


def test_a_case_equals_the_cpu(case, accelerator, reference):
    for finding in compare_case(case, accelerator, reference):
        assert finding.met, finding


def test_random_bits_and_products_equal_the_cpu(accelerator, reference):
    for finding in compare([], accelerator, reference):
        assert finding.met, finding
