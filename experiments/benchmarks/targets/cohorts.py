"""Processor time of samples of records and of the calibration of a sweep, and of rounds of secret cohorts."""

from collections.abc import Iterator
from functools import partial
from time import process_time

import numpy as np
from measures import processor_seconds

from fedprivjax import datasets
from fedprivjax.bench import cell
from fedprivjax.bench.fedavg import random_images
from fedprivjax.bench.timing import Line, compiled_run, in_a_process
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.disk_cache import CACHE
from fedprivjax.engine.prepare import ready
from fedprivjax.method.adaptive_clip import AdaptiveClip
from fedprivjax.noise.server_factors import OptimalFactor
from fedprivjax.plan.participation import PoissonCohorts, Uniform
from fedprivjax.plan.samplers import Subset
from fedprivjax.problem.networks import CNN
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols import DPMu2, FedAvg
from fedprivjax.sweeps.prepare import ready_sweep

MACHINES, RECORDS, STEPS, BATCH, ROUNDS = 10, 60_000, 20, 20, 20  # of subsets
CLIENTS, COHORT, FITTED = 100, 10, 1000  # of secret cohorts, and rounds of a noise factor
TARGETS, SCALES = np.linspace(1, 16, 50).tolist(), np.geomspace(0.1, 10, 100).tolist()  # of a sweep


def lines() -> Iterator[Line]:
    """Yield the processor times of a round's subsets, a sweep's preparation and a fit, and ratios of secret cohorts."""
    yield Line("subsets of 10 × 60,000 records, a round of 20 × 20", 1e3 * subset_seconds(), "ms", "≤ 5")
    yield Line("a sweep of 5,000 configurations with 50 targets is prepared", prepared_seconds(), "CPU-s", "≤ 1.5")
    yield Line("optimal noise factor of 1,000 rounds", in_a_process(factor_seconds, **{CACHE: ""}), "CPU-s", "≤ 10")
    secret = "Poisson cohorts over uniform ones, 10 of 100"
    yield Line(f"{secret}, digits", ratio_of_cohorts(*on_digits()), "ratio", "≤ 1.5")
    yield Line(f"{secret}, a CNN with an adaptive clip", ratio_of_cohorts(*on_images()), "ratio", "≤ 1.5")


def subset_seconds() -> float:
    """Return the processor time of one round's subsets: 20 local steps of 20 records on each machine."""
    sizes, sampler = np.full(MACHINES * STEPS, RECORDS), Subset(BATCH)
    batches, rng = sampler.batches(sizes), np.random.default_rng(0)
    return processor_seconds(lambda: sampler.message(sizes, batches, RECORDS, BATCH, rng), repeats=ROUNDS)[0]


def prepared_seconds() -> float:
    """Return the processor time of the preparation of a sweep over privacy levels and steps, on one schedule."""
    options = {"metrics": cell.METRICS, "eval_every": cell.ROUNDS, "rounds": cell.ROUNDS}
    over, problem, method = {"mu": TARGETS, "step_scale": SCALES}, cell.make(), DPMu2(clip=1.6)
    job = partial(ready_sweep, method, problem, cell.PARTICIPATION, over=over, **options)
    return processor_seconds(lambda: job().sizes, repeats=3)[0]


def factor_seconds() -> float:
    """Return the processor time of the fit of a noise factor to cohorts of 10 of 100 machines."""
    schedule = Uniform(CLIENTS, COHORT).draw(FITTED, np.random.default_rng(0))
    began = process_time()
    OptimalFactor().matrix(schedule)
    return process_time() - began


def on_digits() -> tuple[FedAvg, Problem, int]:
    """Return one local epoch of softmax regression on 14 digits of each machine, without privacy, and rounds."""
    rows = np.arange(14 * CLIENTS).reshape(CLIENTS, 14)
    problem = from_dataset(datasets.load("digits"), partition_table=rows)
    return FedAvg(local_epochs=1, batch=14, step_size=0.1, noise_std=0.0), problem, 200


def on_images() -> tuple[FedAvg, Problem, int]:
    """Return two local epochs of a convolutional network on 20 images of each machine, and the number of rounds."""
    rows = np.arange(20 * CLIENTS).reshape(CLIENTS, 20)
    problem = from_dataset(random_images(rows.size), network=CNN((8, 16)), partition_table=rows)
    private = {"unit": "machine", "trust": "server", "noise_std": 0.5, "update_clip": AdaptiveClip(start=0.3)}
    return FedAvg(local_epochs=2, batch=20, step_size=0.1, **private), problem, 3


def ratio_of_cohorts(method: FedAvg, problem: Problem, rounds: int) -> float:
    """Return the ratio of processor times with secret Poisson cohorts to those with uniform ones of the mean size."""
    schemes = PoissonCohorts(CLIENTS, COHORT / CLIENTS), Uniform(CLIENTS, COHORT)
    starts = [ready(method, problem, scheme, rounds=rounds, metrics=(), eval_every=rounds) for scheme in schemes]
    secret, public = processor_seconds(*map(compiled_run, starts))
    return secret / public
