"""The committed reference vectors: their size, header and checksums, and that today's code reproduces them."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedprivjax.checks.refusal import Refusal
from fedprivjax.protocols.registry import METHODS
from fedprivjax.vectors import CASES, FORMAT, read_arrays
from fedprivjax.vectors.files import case_arrays, checksum, differences, file_arrays, npz_bytes

FOLDER = Path(__file__).parents[2] / "experiments/vectors"
METHOD_NAMES = sorted(CASES)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_file_is_small_and_has_its_arrays(method):
    path = FOLDER / f"{method}.npz"
    assert path.stat().st_size < 300_000
    arrays = read_arrays(path)
    header = json.loads(str(arrays["header"]))
    assert header["format"] == FORMAT
    assert set(header["cases"]) == set(CASES[method])
    assert len(header["cases"]) <= 13
    assert " at 0x" not in str(arrays["header"])  # an address differs from one regeneration to the next
    for name, case in header["cases"].items():
        own = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
        assert set(own) == set(case["arrays"])
        assert checksum(own) == case["sha256"]
        quiet = not case["settings"]["noise_std"]
        assert (case["guarantee"] is None) == quiet
        inside = case["given"] == ["messages"]  # noise of bits has no array
        assert any("_noise" in key for key in own) == (not quiet and not inside)


def test_every_method_has_a_file_and_all_are_small_together():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.npz")) < 8e6
    assert set(CASES) == set(METHODS)


def test_todays_code_reproduces_a_case():
    """Of a momentum, whose noise is recorded as it is in m_t and in m_{t−1}."""
    stored = read_arrays(FOLDER / "tree_momentum.npz")
    arrays, _ = case_arrays("tree_momentum", CASES["tree_momentum"]["none"])
    named = {f"none/{name}": value for name, value in arrays.items()}
    own = {name: value for name, value in stored.items() if name.startswith("none/")}
    assert differences(own, named) == []
    for name, factor in (("none/messages", 1 + 2e-6), ("none/message_noise.before", 0.5)):  # 1 − α = 0.5
        assert len(differences(own, {**named, name: named[name] * factor})) == 1


def test_a_changed_guarantee_is_a_difference():
    stored = read_arrays(FOLDER / "dp_mu2.npz")
    header = json.loads(str(stored["header"]))
    epsilon = header["cases"]["partial"]["guarantee"]["epsilon"]
    header["cases"]["partial"]["guarantee"]["epsilon"] = epsilon / 2
    changed = {**stored, "header": np.array(json.dumps(header))}
    assert differences(stored, changed) == [
        f"header/partial/guarantee/epsilon: {epsilon!r} in the file, now {epsilon / 2!r}"
    ]
    assert differences(stored, stored) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_todays_code_reproduces_every_file(method):
    assert differences(read_arrays(FOLDER / f"{method}.npz"), file_arrays(method)) == []


@pytest.mark.slow
def test_regeneration_gives_the_same_bytes():
    assert npz_bytes(file_arrays("dp_mu2")) == npz_bytes(file_arrays("dp_mu2"))


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, header=np.array(json.dumps({"format": 99, "cases": {}})))
    with pytest.raises(Refusal, match="must have format 1, got format 99"):
        read_arrays(path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(Refusal, match="must hold reference vectors"):
        read_arrays(path)
