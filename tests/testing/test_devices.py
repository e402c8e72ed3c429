"""The comparison of a device with the CPU, on simulated devices and on devices with planted faults."""

import json

import jax
import numpy as np
import pytest
from rounded_products import rounded
from typer.testing import CliRunner

from fedprivjax import Refusal, cli
from fedprivjax.bench import accelerator
from fedprivjax.protocols import ALGORITHMS, PROTOCOLS
from fedprivjax.testing import device_cases, devices
from fedprivjax.testing.devices import NOISE, RUNS, SWEEP, Computer, Finding, compare, compare_case, cpu

FEW = ("noisy_sgd", "noisy_minibatch_sgd")
KINDS = (RUNS, SWEEP, NOISE)
METHODLESS = "feddyn", "fedexp", "fednova", "mimelite", "proxskip", "dpzero", "ditto", "fedper", "staged"


def cases(*names):
    return {case.label: case for case in device_cases.cases({name: PROTOCOLS[name] for name in names})}


class Rounding(Computer):
    """A device whose products round their factors to bfloat16."""

    def run(self, arguments, static):
        return jax.jit(rounded(lambda arguments: self.programs.run.__wrapped__(arguments, static)))(arguments)

    def product(self, one, other, precision):
        return jax.jit(rounded(jax.numpy.matmul))(*map(jax.numpy.asarray, (one, other)))


class Noisy(Computer):
    """A device whose noise has another scale."""

    scale = 3 / 2

    def noise(self, start, seed):
        return self.scale * super().noise(start, seed)


class Quiet(Noisy):
    scale = 2 / 3


class Failing(Computer):
    def sweep(self, start):
        raise RuntimeError("out of memory\non this device")


def found(case, computer):
    return {finding.kind: finding for finding in compare_case(case, computer, cpu())}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODLESS)
def test_an_algorithm_without_a_method_has_a_case_for_each_privacy_object_and_unit(name):
    assert name in ALGORITHMS
    own = list(device_cases._of_algorithm(name))
    privacies = {type(case.protocol.privacy).__name__ for case in own}
    of_messages = {"NoisyMessages", "NoisyRecords", "GaussianMean", "BitMean"}
    assert privacies == (of_messages if name in ("dpzero", "staged") else {"LocalPrivacy", "NoisyRecordSteps"})
    assert len(own) == len({case.label for case in own}) >= 2
    findings = [finding for case in own for finding in compare_case(case, Computer(jax.devices()[1]), cpu())]
    assert all(finding.met for finding in findings), findings


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_simulated_device_equals_the_cpu(name):
    findings = found(cases(name)[name], Computer(jax.devices()[1]))
    assert set(findings) == set(KINDS)
    assert all(finding.met for finding in findings.values()), findings


def test_a_device_that_rounds_products_to_bfloat16_fails():
    case = cases(FEW[0])[FEW[0]]
    start = case.ready(noise_std=0.0)
    exact = cpu().run(start.arguments, start.static)
    difference = devices.difference(Rounding(jax.devices()[0]).run(start.arguments, start.static), exact)
    assert 3 * devices.TOLERANCE < difference < 0.1
    assert devices.product_error(Rounding(jax.devices()[0])) > 3 * devices.TOLERANCE


@pytest.mark.parametrize("kind", [Noisy, Quiet])
def test_a_device_with_another_scale_of_noise_fails(kind):
    case = cases(FEW[0])[FEW[0]]
    error, limit = devices.compare_noise(case, kind(jax.devices()[0]), cpu())
    assert error > 2 * limit


@pytest.mark.slow
def test_noise_inside_local_steps_is_compared_by_runs():
    case = cases("local_sgd")["local_sgd"]

    class Louder(Computer):
        def run(self, arguments, static):
            protocol = arguments.protocol.replace(noise_std=1.5 * arguments.protocol.noise_std)
            return super().run(arguments._replace(protocol=protocol), static)

    for computer, met in ((Computer, True), (Louder, False)):
        error, limit = devices.compare_noise(case, computer(jax.devices()[0]), cpu())
        assert (error <= limit) is met


def test_an_exception_on_a_device_is_a_finding(monkeypatch):
    monkeypatch.setattr(devices, "compare_runs", lambda *_: (0.0, 1.0))
    monkeypatch.setattr(devices, "compare_noise", lambda *_: (0.0, 1.0))
    findings = found(cases(FEW[0])[FEW[0]], Failing(jax.devices()[0]))
    assert [findings[kind].met for kind in KINDS] == [True, False, True]
    assert findings[SWEEP].error == "RuntimeError: out of memory on this device"


def test_values_that_are_not_finite_differ():
    assert devices.difference([np.nan], [np.nan]) == devices.difference([1.0], [np.inf]) == np.inf
    assert not Finding("a", RUNS, np.nan, 1.0).met


@pytest.mark.slow
def test_cases_cover_every_method_every_algorithm_and_every_registered_option():
    every = device_cases.cases()
    labels = [case.label for case in every]
    assert len(set(labels)) == len(labels)
    assert {label.split(",")[0] for label in labels} == {*PROTOCOLS, *METHODLESS}
    for option, values in device_cases.OPTIONS.items():
        reached = {str(getattr(case.protocol, option, None)) for case in every}
        reached |= {label.split(" = ")[1] for label in labels if f" {option} = " in label}
        assert set(values) <= reached, option


def test_a_registered_method_is_covered(monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "momentum", PROTOCOLS[FEW[0]])
    monkeypatch.setattr(device_cases, "PROTOCOLS", {"momentum": PROTOCOLS["momentum"]})
    assert "momentum" in [case.label for case in device_cases.cases()]


def test_a_method_that_runs_with_none_of_its_examples_is_refused(monkeypatch):
    method = PROTOCOLS[FEW[0]]
    monkeypatch.setattr(method[0], "examples", ({"step_size": -1.0},), raising=False)
    with pytest.raises(Refusal, match=r"^examples of momentum must give a run"):
        device_cases.cases({"momentum": method})


def test_a_process_without_a_cpu_is_refused(monkeypatch):
    def missing(_):
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "devices", missing)
    with pytest.raises(Refusal, match="JAX_PLATFORMS must include cpu"):
        cpu()


FINDINGS = [*(Finding("one", kind, 1e-7, 1e-5) for kind in KINDS), Finding("random bits", "fraction", 0.0, 0.0)]


@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_prints_a_table_and_its_status_says_if_a_result_differs(wrong, monkeypatch, tmp_path):
    findings = [*FINDINGS, Finding("two", SWEEP, 2e-5, 1e-5)] if wrong else FINDINGS
    monkeypatch.setattr(accelerator, "findings", lambda: ((one, len(findings)) for one in findings))
    file = tmp_path / "device.json"
    answer = CliRunner().invoke(cli.app, ["bench", "--check-device", "--json", str(file)])
    assert answer.exit_code == wrong
    written = json.loads(file.read_text())
    assert [row["met"] for row in written["results"]] == [one.met for one in findings]
    assert {"device", "precision", "backend"} <= written["machine"].keys()
    table = accelerator.table(findings)
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows[0] == ("one", "1.0e-07", "1.0e-07", "1.0e-07", "ok")
    assert len(rows) == 2 + wrong
    if wrong:
        assert rows[2] == ("two", "", "2.0e-05 > 1e-05", "", "MISS")


def test_the_command_refuses_a_group():
    answer = CliRunner().invoke(cli.app, ["bench", "--check-device", "--only", "sweeps"])
    assert isinstance(answer.exception, Refusal)


@pytest.mark.slow
def test_findings_end_with_random_bits_and_a_product():
    findings = list(compare([], Computer(jax.devices()[1]), cpu()))
    assert [finding.label for finding in findings] == ["random bits", "matrix product"]
    assert all(finding.met for finding in findings)
