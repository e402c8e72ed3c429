"""Programs of the comparison of devices: runs, sweeps and noise on one device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.compiled import products
from fedprivjax.engine.prepare import Arguments, ReadyRun
from fedprivjax.engine.simulate import run_program
from fedprivjax.problem.program import typed_jit
from fedprivjax.problem.random_keys import random_key
from fedprivjax.sweeps.execute import chunk_arguments, run_chunk
from fedprivjax.sweeps.prepare import ReadySweep
from fedprivjax.testing.noise import noise_arguments, noise_path

WIDTH = 512  # numbers of the random bits
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
