"""Programs compiled for a card that is not there, and predictions from the compiler's text. Nothing is run.

XLA compiles for a GPU from its description, without the GPU, if jax's CUDA packages are installed. The text of a
compiled program lists its kernels, loops, collectives and matrix products.

* **Kernels** of a loop count once for each of its steps. Copies count as kernels.
* **Bytes** are those that kernels read and write in the card's memory, by the shapes of operands and results. Of an
  array that a kernel slices, gathers from or updates, only the parts that it uses count. Caches are ignored.
* The **prediction** is the larger of the time to launch the kernels and the time to move the bytes.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.devices import MACHINES, RUNS
from fedprivjax.problem.program import FLOAT32, TF32

LAUNCH = 3e-6  # seconds from one kernel to the next
PACKAGES = ("jax_cuda12_plugin", "jax_cuda13_plugin")
OPTIONS = {"xla_gpu_autotune_level": 0}  # kernels are not timed, which needs the card
LIBRARY = {"xla_gpu_enable_triton_gemm": False}  # products by the card's library, if XLA cannot generate all of them


class Card(NamedTuple):
    """Properties of one GPU that XLA compiles for.

    Attributes:
        name: its name as the driver reports it.
        capability: major CUDA compute capability.
        cores, units: streaming multiprocessors, and float32 units of each.
        shared: bytes of shared memory of a multiprocessor. One block has all but 1024 of them.
        clock: GHz.
        cache, memory: bytes of the L2 cache, and of memory.
        bandwidth: bytes per second of memory.
    """

    name: str
    capability: int
    cores: int
    units: int
    shared: int
    clock: float
    cache: int
    memory: int
    bandwidth: float

    @property
    def description(self) -> str:
        """Description that the compiler reads: a `GpuTargetConfigProto` as text."""
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "threads_per_core_limit": 2048,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared,
            "shared_memory_per_block_optin": self.shared - 1024,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "core_count": self.cores,
            "fpus_per_core": self.units,
            "clock_rate_ghz": self.clock,
            "l2_cache_size": self.cache,
            "device_memory_size": self.memory,
            "memory_bandwidth": int(self.bandwidth),
        }
        fields = " ".join(f"{name}: {value}" for name, value in device.items())
        return (
            f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: {self.capability} }} }}\n"
            f'platform_name: "CUDA" device_description_str: "{self.name}"\n'
            f"dnn_version_info {{ major: 9 minor: 7 }} runtime_version {{ major: 12 minor: 8 }}"
        )


CARDS = {
    "a100": Card("NVIDIA A100-SXM4-80GB", 8, 108, 64, 167936, 1.41, 41943040, 85100068864, 2.03904e12),
    "h100": Card("NVIDIA H100 80GB HBM3", 9, 132, 128, 233472, 1.98, 52428800, 84942979072, 3.35232e12),
    "h200": Card("NVIDIA H200", 9, 132, 128, 233472, 1.98, 52428800, 151397597184, 4.8e12),
}


def require_compiler() -> None:
    """Raise Refusal unless jax's CUDA packages, which hold XLA's compiler for GPUs, are installed.

    Call it before any other use of jax: this process then uses the CPU alone, since the packages look for a driver
    otherwise.
    """
    if not any(map(find_spec, PACKAGES)):
        raise Refusal(
            "jax's compiler for GPUs must be installed to compile for a card, got none of its packages. "
            "Install fedprivjax[cuda12]: 5.5 GB, and no GPU is needed"
        )
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # no device would read what is stored


@cache
def mesh_of(card: str, runs: int = 1, machines: int = 1) -> Mesh:
    """Return a mesh of cards that are not there, with the axes "runs" and "machines"."""
    given = {"target_config": CARDS[card].description, "topology": f"1x1x{runs * machines}"}
    devices = topologies.get_topology_desc(platform="cuda", **given).devices
    return Mesh(np.array(devices).reshape(runs, machines), (RUNS, MACHINES))


def shapes(arguments: Any, mesh: Mesh, leading: tuple[int, ...] = ()) -> Any:
    """Return the shapes of a pytree's arrays with leading axes, held by every device of a mesh."""
    everywhere = NamedSharding(mesh, PartitionSpec())

    def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
        kind = jax.typeof(leaf)
        return jax.ShapeDtypeStruct((*leading, *kind.shape), kind.dtype, sharding=everywhere, weak_type=kind.weak_type)

    return jax.tree.map(shape_of, arguments)


class Program(NamedTuple):
    """Properties of a compiled program.

    Attributes:
        kernels: number of kernels that a call launches, copies included.
        copies: number of copies among them.
        moved: bytes that the kernels read and write.
        collectives: number of collectives by kind.
        products: sorted precisions of its products of float32 numbers, "float32" or "tf32".
        memory: bytes of arguments, temporaries and results on a device.
    """

    kernels: int
    copies: int
    moved: int
    collectives: Mapping[str, int]
    products: tuple[str, ...]
    memory: int

    @classmethod
    def of(cls, compiled: Any) -> "Program":
        """Return the description of a compiled program."""
        found, text = compiled.memory_analysis(), compiled.as_text()
        memory = found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes
        return cls(*counted(text), products_of(text), memory)


def compiled(lowered: Any) -> Any:
    """Return the compiled form of a program that was lowered for cards that are not there."""
    try:
        return lowered.compile(compiler_options=OPTIONS)
    except jax.errors.JaxRuntimeError:  # some shapes have no generated kernel without timings
        return lowered.compile(compiler_options=OPTIONS | LIBRARY)


def seconds(kernels: float, moved: float, card: Card) -> float:
    """Return the predicted seconds of a number of kernels that move `moved` bytes in all.

    >>> seconds(10, 0, CARDS["h100"]), seconds(0, 3.35232e12, CARDS["h100"])
    (3e-05, 1.0)
    """
    return max(kernels * LAUNCH, moved / card.bandwidth)


SIZES = {"pred": 1, "bf16": 2, "token": 0} | {f"{kind}{8 * size}": size for kind in "sufc" for size in (1, 2, 4, 8, 16)}
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
FREE = {  # instructions that launch no kernel
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("while", "conditional", "call", "opt-barrier", "add-dependency", "get-dimension-size"),
}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")
PARTS = ("slice", "dynamic-slice", "gather")  # instructions that read a part of their first operand
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # those that write such a part: place of the update's operand
PRODUCT = re.compile(r'= \(?f32\[.* (?:dot|convolution)\(|= \(?f32\[.*custom_call_target="__cu(?:blas|dnn)\$')
WHOLE = re.compile(r'operand_precision=\{highest,highest\}|"operand_precision":\["HIGHEST","HIGHEST"\]|dot_f32_f32_f32')


class Instruction(NamedTuple):
    """One instruction: its name, type, operation, names of its operands, and the rest of its line."""

    name: str
    type: str
    operation: str
    operands: list[str]
    rest: str


Computations = dict[str, list[Instruction]]


def computations(text: str) -> tuple[Computations, str]:
    """Return the computations of a module by name, and the name of its entry."""
    found: Computations = {}
    name = entry = ""
    for line in text.splitlines():
        if start := COMPUTATION.match(line):
            name = start[2]
            found[name] = []
            entry = name if start[1] else entry
        elif name and (parsed := INSTRUCTION.match(line)):
            given, _, rest = parsed[4].partition("), ")
            found[name].append(Instruction(parsed[1], parsed[2], parsed[3], re.findall(r"%([\w.\-]+)", given), rest))
    return found, entry


def counted(text: str) -> tuple[int, int, int, Mapping[str, int]]:
    """Return the kernels, copies, bytes and collectives of a module's text, as in `Program`."""
    found, entry = computations(text)
    total = _counted(found, entry)
    of_collectives = {name: total[name] for name in COLLECTIVES if total[name]}
    return total["kernels"], total["copies"], total["moved"], of_collectives


def _counted(found: Computations, name: str) -> Counter:
    total: Counter = Counter()
    types = {one.name: one.type for one in found[name]}
    for one in found[name]:
        if one.operation == "while":
            steps = re.search(r'known_trip_count\D*"n":"(\d+)"', one.rest)
            times = int(steps[1]) if steps else 1
            for kind, number in _counted(found, _called(one, "body")).items():
                total[kind] += times * number
        elif one.operation == "call":
            total.update(_counted(found, _called(one, "to_apply")))
        elif one.operation == "conditional":  # its most expensive branch
            names = re.findall(r"%([\w.\-]+)", one.rest.partition("metadata")[0])
            branches = [_counted(found, each) for each in names if each in found]
            total.update(max(branches, key=lambda branch: branch["moved"]))
        elif one.operation not in FREE and not one.operation.endswith(("-done", "-update")):
            operation = one.operation.removesuffix("-start")
            total.update({"kernels": 1, "copies": operation == "copy", "moved": _moved(found, one, types)})
            total[operation] += operation in COLLECTIVES
    return total


def _called(one: Instruction, attribute: str) -> str:
    return re.search(rf"\b{attribute}=%?([\w.\-]+)", one.rest)[1]  # type: ignore[index]


def _moved(found: Computations, one: Instruction, types: Mapping[str, str]) -> int:
    """Return the bytes that a kernel reads and writes."""
    if one.operation == "fusion":
        inside = found[_called(one, "calls")]
        results = inside[-1].operands if inside[-1].operation == "tuple" else [inside[-1].name]
        parameters = [each for each in inside if each.operation == "parameter"]
        return sum(_written(inside, name) for name in results) + sum(_read(inside, each) for each in parameters)
    given = [size_of(types.get(name, "")) for name in one.operands]
    if one.operation in PARTS:
        return 2 * size_of(one.type)
    return 2 * sum(given[1:]) if one.operation in UPDATES else sum(given) + size_of(one.type)


def _read(inside: list[Instruction], array: Instruction) -> int:
    """Return the bytes of an array that the other instructions of a kernel read."""
    whole, total = size_of(array.type), 0
    for user in inside:
        if array.name not in user.operands:
            continue
        first = user.operands[0] == array.name
        if user.operation == "bitcast":
            total += _read(inside, user)
        elif user.operation in PARTS and first:
            total += size_of(user.type)
        elif user.operation not in UPDATES or not first:
            return whole
    return min(total, whole)


def _written(inside: list[Instruction], name: str) -> int:
    """Return the bytes of a kernel's result that it writes: the updates, if they are written into an operand."""
    one = next(each for each in inside if each.name == name)
    if one.operation == "bitcast":
        return _written(inside, one.operands[0])
    if one.operation in UPDATES:
        update = one.operands[UPDATES[one.operation]]
        return next(size_of(each.type) for each in inside if each.name == update)
    return size_of(one.type)


def size_of(shape: str) -> int:
    """Return the bytes of a type, the sum of its parts if it is a tuple.

    >>> size_of("(f32[10,785]{1,0}, s32[], /*index=2*/pred[4]{0})")
    31408
    """
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", shape)
    return sum(SIZES.get(kind, 1) * prod(map(int, filter(None, sides.split(",")))) for kind, sides in arrays)


def products_of(text: str) -> tuple[str, ...]:
    """Return the sorted precisions of the products of float32 numbers in a module's text.

    >>> products_of("  ROOT %dot.1 = f32[2,2]{1,0} dot(%a, %b), operand_precision={highest,highest}")
    ('float32',)
    """
    products = filter(PRODUCT.search, text.splitlines())
    return tuple(sorted({FLOAT32 if WHOLE.search(line) else TF32 for line in products}))
