"""The launcher of several processes: ends, timeouts and kills."""

import sys
import time

import pytest
from processes import devices_flag, require_success, started

PRINT, SLEEP = "import sys; print('said'); sys.exit(3)", "import time; print('asleep', flush=True); time.sleep(60)"


def commands(*codes):
    return [[sys.executable, "-c", code] for code in codes]


def test_results_are_statuses_and_texts(tmp_path):
    with started(commands(PRINT, "raise OSError('full')"), tmp_path / "log", [{}, {}]) as processes:
        first, second = processes.results(20.0)
    assert first == (3, "said\n", "")
    assert second.status == 1
    assert second.errors.endswith("OSError: full\n")
    with pytest.raises(AssertionError, match="process 0: 3"):
        require_success([first, second])


def test_a_process_that_does_not_end_is_killed(tmp_path):
    began = time.monotonic()
    with started(commands(SLEEP), tmp_path / "log", [{}]) as processes:
        processes.wait_for(0, "asleep")
        with pytest.raises(AssertionError, match=r"process 0 did not end in 0\.1 s"):
            processes.results(0.1)
        with pytest.raises(AssertionError, match="process 0 did not print 'awake'"):
            processes.wait_for(0, "awake", 0.1)
    assert processes.running[0].returncode == -9
    assert time.monotonic() - began < 30


def test_devices_replace_those_of_this_process(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--one --xla_force_host_platform_device_count=4 --two")
    assert devices_flag(2) == {"XLA_FLAGS": "--one --two --xla_force_host_platform_device_count=2"}
