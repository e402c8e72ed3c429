"""Time of a sweep's configuration compared with a separate run, on one device and on two."""

from collections.abc import Iterator
from dataclasses import replace

import jax

from fedprivjax.bench import cell
from fedprivjax.bench.timing import Line, in_a_process, side_by_side
from fedprivjax.protocols import DPMu2
from fedprivjax.sweeps.execute import execute

MU, SEEDS, ROUNDS = [4.0, 8.0, 12.0], 20, 600
TWO_DEVICES = "--xla_force_host_platform_device_count=2"


def lines() -> Iterator[Line]:
    """Yield the times of a sweep of 3 privacy levels and 20 seeds."""
    if jax.default_backend() != "cpu":
        yield Line("sweep of 60 configurations, one over a run", per_configuration(), "times", "≤ 0.5")
        return
    alone = in_a_process(per_configuration, XLA_FLAGS="")
    yield Line("sweep of 60 configurations, one over a run", alone, "times", "≤ 0.5")
    two = in_a_process(per_configuration, XLA_FLAGS=TWO_DEVICES)
    yield Line("the same on two simulated devices", two, "times", "≤ 0.45")


def per_configuration() -> float:
    """Return the ratio of a configuration's time to a single run's, both compiled, with the sweep's host work."""
    start = cell.sweep_of(MU, SEEDS, ROUNDS)
    jobs = {"sweep": lambda: execute(replace(start)).to_dict(), "run": cell.run_of(DPMu2(mu=8.0), rounds=ROUNDS)}
    taken = side_by_side(jobs, repeats=3)
    return taken["sweep"] / (len(MU) * SEEDS) / taken["run"]
