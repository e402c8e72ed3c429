"""Comparison of a device with the CPU: small runs without noise, and the distribution of their noise.

A `Computer` holds the programs of runs, sweeps and noise on one device.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.prepare import Arguments, ReadyRun
from fedprivjax.engine.simulate import run_program
from fedprivjax.problem.program import FLOAT32, make_room, products, typed_jit
from fedprivjax.problem.random_keys import random_key
from fedprivjax.sweeps.execute import chunk_arguments, run_chunk
from fedprivjax.sweeps.prepare import ReadySweep, ready_sweep
from fedprivjax.testing.device_cases import RUN, DeviceCase
from fedprivjax.testing.privacy import LIMIT, covariance_misfit, noise_arguments, noise_path

WIDTH = 512  # numbers of the random bits, and of each side of the matrices of a product
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # of the CPU's compiler


class Programs(NamedTuple):
    """Compiled functions of the comparison, with the same compiler options."""

    run: Any
    sweep: Any
    noise: Any


def programs(options: Mapping[str, Any] | None = None) -> Programs:
    """Return the package's programs, or new ones with other compiler options."""
    noise = typed_jit(noise_path, static_argnames="size", compiler_options=options)
    if options is None:
        return Programs(run_program, run_chunk, noise)
    run = typed_jit(run_program.__wrapped__, static_argnames="static", compiler_options=options)
    sweep = typed_jit(run_chunk.__wrapped__, static_argnames=("static", "over"), compiler_options=options)
    return Programs(run, sweep, noise)


PROGRAMS = programs()


@dataclass(frozen=True)
class Computer:
    """Programs of a case on one device. The results are host arrays.

    Attributes:
        device: the device that computes.
        programs: compiled functions.
    """

    device: Any
    programs: Programs = PROGRAMS

    def run(self, arguments: Arguments, static: Any) -> Any:
        """Return the parameters and metrics of a run."""
        return jax.device_get(self.programs.run(self.on_device(arguments), static))

    def sweep(self, start: ReadySweep) -> Any:
        """Return the metrics of all runs of a sweep, leaves [draws, configurations, evaluations]."""
        arguments = chunk_arguments(start, *map(np.arange, start.runs))
        return jax.device_get(self.programs.sweep(*self.on_device(arguments), start.static))

    def noise(self, start: ReadyRun, seed: int) -> np.ndarray | None:
        """Return the noise in the aggregate of many coordinates, float64 [rounds, coordinates], or None."""
        arguments = self.on_device(noise_arguments(start, start.mechanism, seed))
        noises = self.programs.noise(*arguments, start.plan.size)
        return None if noises is None else np.asarray(noises, np.float64)

    def bits(self) -> np.ndarray:
        """Return random bits of a key, uint32."""
        return jax.device_get(jax.random.bits(self.on_device(random_key(0)), (WIDTH,)))

    def product(self, one: np.ndarray, other: np.ndarray, precision: str) -> np.ndarray:
        """Return a matrix product in a precision, a key of `engine.compiled.PRECISIONS`."""
        with products(precision):
            return jax.device_get(jax.jit(jnp.matmul)(*self.on_device((one, other))))

    def on_device(self, arrays: Any) -> Any:
        """Return a pytree with its arrays on the device."""
        return jax.device_put(arrays, self.device)


def cpu() -> Computer:
    """Return the first CPU device, with programs that are compiled quickly, without most optimisations.

    Raises:
        Refusal: if jax was started without a CPU.
    """
    try:
        return Computer(jax.devices("cpu")[0], programs(QUICK))
    except RuntimeError:
        raise Refusal("JAX_PLATFORMS must include cpu for a comparison. Set JAX_PLATFORMS=cuda,cpu") from None


TOLERANCE = 1e-5  # of a run without noise, as a fraction of the largest value
NOISY = 1e-4  # of a run with the same noise, if noise is inside the local steps
STANDARD_ERRORS = 1.5 * LIMIT  # of an entry of the noise's covariance
STEPS, SEEDS = (0.05, 0.1), 2  # of a sweep
RUNS, SWEEP, NOISE = "run", "sweep", "noise"


class Finding(NamedTuple):
    """One comparison: a difference and its largest allowed value. A comparison that raised has the error's text."""

    label: str
    kind: str
    value: float
    limit: float
    error: str = ""

    @property
    def met(self) -> bool:
        """True if the difference is within its limit.

        >>> Finding("dp_mu2", "run", 2e-7, 1e-5).met, Finding("dp_mu2", "run", float("nan"), 1e-5).met
        (True, False)
        """
        return not self.error and self.value <= self.limit


def compare(
    cases: Iterable[DeviceCase], computer: Computer, reference: Computer, workers: int = 1
) -> Iterator[Finding]:
    """Yield the findings of all cases in order, then those of the random bits and of a matrix product.

    Args:
        workers: number of threads. Several compile programs at the same time.
    """
    with ThreadPoolExecutor(workers) as threads:
        for findings in threads.map(lambda case: compare_case(case, computer, reference), cases):
            make_room()
            yield from findings
    different = float(np.mean(computer.bits() != reference.bits()))
    yield Finding("random bits", "fraction that differs", different, 0.0)
    yield Finding("matrix product", FLOAT32, product_error(computer), TOLERANCE)


def compare_case(case: DeviceCase, computer: Computer, reference: Computer) -> list[Finding]:
    """Return the findings of one case: a run and a sweep without noise, and the noise.

    An exception is a finding that is not met.
    """
    findings = []
    for kind, check in {RUNS: compare_runs, SWEEP: compare_sweeps, NOISE: compare_noise}.items():
        try:
            findings += [Finding(case.label, kind, *check(case, computer, reference))]
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            findings += [Finding(case.label, kind, inf, TOLERANCE, text)]
    return findings


def compare_runs(case: DeviceCase, computer: Computer, reference: Computer) -> tuple[float, float]:
    """Return the largest relative difference of a run without noise, and its limit."""
    start = case.ready(noise_std=0.0)
    arguments = start.arguments
    return difference(*(each.run(arguments, start.static) for each in (computer, reference))), TOLERANCE


def compare_sweeps(case: DeviceCase, computer: Computer, reference: Computer) -> tuple[float, float]:
    """Return the largest relative difference of a sweep over steps and seeds without noise, and its limit."""
    protocol = replace(case.protocol, noise_std=0.0, step_size=None)
    options = {"over": {"step_size": STEPS}, "seeds": SEEDS, **RUN}
    start = ready_sweep(protocol, case.problem, case.participation, **options)
    return difference(computer.sweep(start), reference.sweep(start)), TOLERANCE


def compare_noise(case: DeviceCase, computer: Computer, reference: Computer) -> tuple[float, float]:
    """Return the largest difference of the noise's covariances in standard errors, and its limit.

    For noise inside the local steps it is the largest relative difference of runs with the same noise.

    Raises:
        AssertionError: if the comparison could not reject 2/3 or 3/2 of the noise.
    """
    start = case.ready()
    found, expected = computer.noise(start, 1), reference.noise(start, 0)
    if found is None or expected is None:
        return _compare_noisy_runs(start, computer, reference), NOISY
    for scale in (2 / 3, 3 / 2):
        if covariance_misfit(scale * expected, expected) < STANDARD_ERRORS:
            raise AssertionError("the noise has too few samples to reject another scale")
    return covariance_misfit(found, expected), STANDARD_ERRORS


def _compare_noisy_runs(start: ReadyRun, computer: Computer, reference: Computer) -> float:
    arguments, static = start.arguments, start.static
    expected = reference.run(arguments, static)
    for scale in (2 / 3, 3 / 2):
        protocol: Any = arguments.protocol
        scaled = replace(protocol, noise_std=np.float32(scale) * protocol.noise_std)
        if difference(reference.run(arguments._replace(protocol=scaled), static), expected) < NOISY:
            raise AssertionError("a run must depend on the scale of its noise")
    return difference(computer.run(arguments, static), expected)


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference of two pytrees, divided by each leaf's largest value; inf if one is not finite.

    >>> difference({"a": np.array([1.0, 2.2])}, {"a": np.array([1.0, 2.0])}).__round__(3)
    0.1
    """
    return max(_of_leaf(one, other) for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True))


def _of_leaf(found: Any, expected: Any) -> float:
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return inf
    return float(np.max(np.abs(one - other)) / max(np.max(np.abs(other)), np.finfo(np.float32).tiny))


def product_error(computer: Computer, precision: str = FLOAT32) -> float:
    """Return the largest error of a product of normal matrices [512, 512], divided by its largest value."""
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    return difference(computer.product(one, other, precision), one.astype(np.float64) @ other.astype(np.float64))
