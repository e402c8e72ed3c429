"""Compiled programs that a process keeps: there is no room for more than some hundreds."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

import jax

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
MOST = 0.5  # of the mappings that the system allows one process; beyond all of them, compiling crashes it
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"  # a third of the time to compile


def compile_quickly() -> None:
    """Compile sooner and run more slowly, which is quicker for what is small. Call it before jax does anything, for
    XLA reads its settings once."""
    jax.config.update("jax_disable_most_optimizations", True)
    given = os.environ.get("XLA_FLAGS", "")
    if knows_quick() and QUICK not in given:
        os.environ["XLA_FLAGS"] = f"{QUICK} {given}"


def knows_quick() -> bool:
    """Whether XLA knows the flags of `QUICK`: it ends a process that gives it others."""
    return (0, 7) <= tuple(map(int, version("jaxlib").split(".")[:2])) <= (0, 10)


def make_room() -> bool:
    """Forget every compiled program where they take half of the memory mappings that the system allows.

    On a CPU a program takes some hundreds of mappings and Linux allows 65530, so that a process which compiles a few
    hundred programs would be killed. A program that is called again is compiled again, or read from jax's persistent
    cache where one is set up. Elsewhere than on Linux nothing is done.

    Returns:
        Whether programs were forgotten.

    >>> make_room()
    False
    """
    if not (MAPPINGS.exists() and LIMIT.exists()) or taken() < MOST * int(LIMIT.read_text()):
        return False
    jax.clear_caches()
    gc.collect()
    return True


def taken() -> int:
    """Memory mappings that this process has."""
    with MAPPINGS.open("rb") as lines:
        return sum(1 for _ in lines)
