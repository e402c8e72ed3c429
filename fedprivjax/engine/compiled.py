"""Compiled programs of a process: precision of products, fast compilation, and a limit on their number.

Products are matrix products and convolutions on an accelerator. Noise is always computed in full precision.
"""

import gc
import os
from importlib.metadata import version
from pathlib import Path

import jax

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
MOST = 0.5  # largest fraction of the process's memory mappings; compiling crashes the process at 1
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # a third of the time to compile
FLOAT32, TF32 = "float32", "tf32"
PRECISIONS = {FLOAT32: "float32", TF32: "tensorfloat32"}  # jax's names


def compile_quickly() -> None:
    """Configure XLA for faster compilation and slower execution, which saves time on small programs.

    Call it before any other use of jax: XLA reads its settings once.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    given = os.environ.get("XLA_FLAGS", "")
    if knows_quick() and QUICK not in given:
        os.environ["XLA_FLAGS"] = f"{QUICK} {given}"


def knows_quick() -> bool:
    """Return True if XLA knows the flags of `QUICK`. XLA aborts the process on unknown flags."""
    return (0, 7) <= tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10)


def make_room(most: float = MOST) -> bool:
    """Clear all compiled programs if the process has a large part of the memory mappings that the system allows.

    On a CPU a program takes some hundreds of mappings, and Linux allows 65530 by default. A process that compiles a few
    hundred programs would therefore be killed. A cleared program is compiled again at its next call, or read from jax's
    persistent cache if one is configured. On systems other than Linux this does nothing.

    Args:
        most: fraction of the allowed memory mappings from which the programs are cleared.

    Returns:
        True if the programs were cleared.

    >>> make_room()
    False
    """
    if not (MAPPINGS.exists() and LIMIT.exists()) or taken() < most * int(LIMIT.read_text()):
        return False
    jax.clear_caches()
    gc.collect()
    return True


def taken() -> int:
    """Return the number of memory mappings of this process."""
    with MAPPINGS.open("rb") as lines:
        return sum(1 for _ in lines)


def products(precision: str = FLOAT32):
    """Return a context in which products are traced with a precision, a key of `PRECISIONS`.

    With "tf32", an accelerator may round the factors of products to 10 bits of mantissa, which is faster. A CPU
    computes in float32 in both cases.
    """
    return jax.default_matmul_precision(PRECISIONS[precision])
