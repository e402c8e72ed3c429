"""Every method compiled for a card that is not there, one run and sweeps, and experiments: `--compile-for`, `--card`.

The setting is that of the accelerator's bench: 100 machines, 50 in a round, softmax regression on 60,000 random images.
Methods with local steps have 10 machines in a round, each with 60 steps of 10 of its 600 records. Two networks compute
the same with FedAvg. Private methods have a given noise, so that nothing is calibrated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil, prod
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from fedprivjax.bench import cell, fedavg
from fedprivjax.bench.accelerator import RUNS as LAYOUTS
from fedprivjax.bench.cards import CARDS, Program, compiled, mesh_of, require_compiler, seconds, shapes
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.experiment import Experiment
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.features.mapped import Say
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.protocol import Protocol, as_leaves
from fedprivjax.method.small_form import examples_of
from fedprivjax.plan.participation import Full, Uniform
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.problem.devices import GIB, programs_for
from fedprivjax.problem.networks import CNN, MLP
from fedprivjax.problem.random_keys import random_key
from fedprivjax.protocols import PROTOCOLS, DPZero, FedAvg, FedDyn, FedExP, MimeLite
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.sweeps.memory import USABLE, floats_of, numbers_drawn, peak_bytes, spread

ROUNDS, NETWORK_ROUNDS = 640, 64
NUMBERS: dict[str, Any] = {"noise_std": 1.0, "step_size": 0.01}
LOCAL_MACHINES = 10
LOCAL: dict[str, Any] = {"noise_std": 0.0, "local_epochs": 1, "batch": fedavg.BATCH}
TREE = {"clip": 1.0, "batch": 60, "alpha": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {  # others have the first of their examples
    "dp_mu2": {},
    "noisy_sgd": {"clip": 1.0},
    "stale_momentum": {"clip": 1.0},
    "noisy_minibatch_sgd": {"clip": 1.0, "sampler": "full"},
    "accelerated_minibatch_sgd": {"clip": 1.0, "sampler": "full"},
    "fedavg": LOCAL,
    "scaffold": LOCAL,
    "local_sgd": {"clip": 1.0, "batch": 20},
    "tree_momentum": TREE,
    "reduced_tree_momentum": TREE,
    "dsgd": {"clip": 1.0, "sampler": "full"},
    "released_local_sgd": {"clip": 1.0, "batch": 20},
    "released_minibatch_sgd": {"clip": 1.0, "batch": 60},
}
ALL_MACHINES = ("reduced_tree_momentum", "dsgd")  # methods that need all machines in each round
WALK = LocalPrivacy(work=LocalEpochs(1, fedavg.BATCH))
PAIRS: dict[str, tuple[Any, Any]] = {  # algorithms of no named method, each with a privacy object
    "feddyn": (FedDyn(alpha=0.1), WALK),
    "fedexp": (FedExP(), WALK),
    "mimelite": (MimeLite(beta=0.5), WALK),
    "dpzero": (DPZero(), NoisyMessages(clip=1.0)),
}
NETWORKS = {"2NN": MLP(fedavg.HIDDEN, activation="relu"), "CNN": CNN((16, 32))}
NO_SERVER = ("dsgd",)  # not in the table, whose bytes are those of one model
NAMES = (*(name for name in PROTOCOLS if name not in NO_SERVER), *PAIRS, *NETWORKS)
Layout = tuple[int, int] | None  # numbers of seeds and of configurations of a sweep, or None for one run
SWEEPS: dict[str, Layout] = {
    "1": None,
    **{f"{runs:,}": (seeds, levels) for runs, (levels, seeds) in LAYOUTS.items() if 100 <= runs <= 10_000},
}


class Row(NamedTuple):
    """Predicted cost of one compiled program. All numbers except `memory` are for one round on one card (GPU).

    Attributes:
        name: name of a method such as "fedavg", of a network, or of an algorithm without a named method, such as
            "feddyn".
        runs: number of runs that one call of the program computes, as text, such as "1,000".
        kernels: number of kernels.
        copies: number of these kernels that are copies.
        least: bytes that a round must read and write according to the shapes of its arrays.
        moved: bytes that the compiled kernels read and write.
        collectives: number of communications between cards, by kind.
        products: precisions in which the program multiplies matrices: "float32", "tf32" or both.
        memory: bytes of memory of the whole program, for all rounds.
        seconds: predicted time.
    """

    name: str
    runs: str
    kernels: float
    copies: float
    least: float
    moved: float
    collectives: Mapping[str, float]
    products: Sequence[str]
    memory: int
    seconds: float


class PlanRow(NamedTuple):
    """One sweep of an experiment: its name, runs, chunks, bytes of a chunk on a card, and predicted seconds."""

    name: str
    runs: int
    chunks: int
    memory: int
    seconds: float


def require_cases(card: str, cards: int = 1, only: Sequence[str] | None = None) -> None:
    """Raise Refusal unless these programs can be compiled for these cards. Call it before any other use of jax."""
    require_choice("card", card, CARDS)
    require_at_least("cards", cards, 1)
    for name in only or ():
        require_choice("method or network", name, NAMES)
    require_compiler()


def rows(card: str, cards: int = 1, only: Sequence[str] | None = None, *, say: Say) -> Iterator[Row]:
    """Compile methods and networks for a card (GPU) that need not be present, and yield predicted costs.

    For each method, there are four programs: one run, and sweeps of 100, 1,000 and 10,000 runs. For each network, there
    are two programs of FedAvg: one run, and a sweep of 100 runs. The method `dsgd` is left out.

    Args:
        card: name of the card, a key of `CARDS`.
        cards: number of cards.
        only: names of methods and networks, or None for all.
        say: progress callback, called with a line of text.
    """
    for name in NAMES if only is None else only:
        start = network(name) if name in NETWORKS else method(name)
        for runs in list(SWEEPS)[:2] if name in NETWORKS else SWEEPS:
            layout = SWEEPS[runs]
            say(f"compiling {name}, {runs} runs")
            found, rounds = Program.of(program(start, layout, card, cards)), start.static.size.rounds
            kernels, moved = found.kernels / rounds, found.moved / rounds
            collectives = {kind: number / rounds for kind, number in found.collectives.items()}
            counts = kernels, found.copies / rounds, least_bytes(start, layout, cards), moved, collectives
            yield Row(name, runs, *counts, found.products, found.memory, seconds(kernels, moved, CARDS[card]))


@programs_for("gpu")
def method(name: str) -> ReadyRun:
    """Return a prepared run of a method on random images, for compilation.

    The run has 100 machines, 50 of them in a round, or 10 for methods with local steps.

    Args:
        name: name of a method (a key of `PROTOCOLS`), or of an algorithm without a named method. `PAIRS` lists these
            algorithms, each with a privacy object.
    """
    if name in PAIRS:
        algorithm, privacy = PAIRS[name]
        own = NUMBERS if privacy is not WALK else NUMBERS | {"noise_std": 0.0}
        protocol: Any = Protocol(algorithm, privacy=privacy, **own)
    else:
        kind: Any = PROTOCOLS[name][0]
        protocol = kind(**{**NUMBERS, **(SETTINGS[name] if name in SETTINGS else examples_of(kind)[0])})
    per_round = LOCAL_MACHINES if isinstance(protocol.minibatches, LocalEpochs) else cell.PER_ROUND
    scheme = Full(cell.MACHINES) if name in ALL_MACHINES else Uniform(cell.MACHINES, per_round)
    problem = cell.make() if protocol.minibatches is None else cell.owned()
    return ready(protocol, problem, scheme, rounds=ROUNDS, metrics=(), eval_every=ROUNDS)


@programs_for("gpu")
def network(name: str) -> ReadyRun:
    """Return a prepared run of FedAvg with a network on random images, all machines in each round."""
    problem = fedavg.random_problem(LOCAL_MACHINES, fedavg.RECORDS, NETWORKS[name])
    options: dict[str, Any] = {"rounds": NETWORK_ROUNDS, "metrics": (), "eval_every": NETWORK_ROUNDS}
    return ready(FedAvg(**NUMBERS | LOCAL), problem, Full(LOCAL_MACHINES), **options)


@programs_for("gpu")
def program(
    start: ReadyRun, layout: Layout, card: str, cards: int = 1, *, keep: bool = False, shared: bool = True
) -> Any:
    """Return the program of one run, or of a sweep, compiled for cards.

    Args:
        keep: whether a sweep returns the parameters of its runs.
        shared: whether the configurations of a sweep share each seed's noise.
    """
    static, arguments = start.static._replace(mesh=None), start.arguments
    if layout is None:
        mesh = mesh_of(card, machines=cards)
        static = static._replace(mesh=mesh if cards > 1 else None)
        return compiled(run_program.lower(shapes(arguments, mesh), static))
    mesh = mesh_of(card, runs=cards)
    draws, columns = map(np.arange, layout)
    over = spread(mesh, layout)
    draws, columns = (draws, columns) if over is None else over.padded(draws, columns)
    configurations = arguments.protocol, as_leaves(start.problem.constraint)
    drawn = arguments.mechanism, arguments.inputs, arguments.key
    of_runs = partial(shapes, mesh=mesh, leading=(draws.size, columns.size))
    given = of_runs(configurations), shapes(drawn, mesh, (draws.size,)), of_runs(arguments.host_noise)
    ids = None if shared else of_runs(np.int32(0))
    return compiled(run_chunk.lower(*given, shapes(arguments.problem, mesh), ids, static, over, keep))


def least_bytes(start: ReadyRun, layout: Layout, cards: int = 1) -> float:
    """Return the bytes that a round must move on a card, by the shapes of the problem.

    A round reads and writes the state of every run, with the states that its machines keep, and the parameters of every
    machine at every local step. It reads its records, and writes and reads its noise, once for all configurations.
    """
    protocol, problem, size = start.protocol, start.problem, start.static.size
    (draws, columns), divided = layout or (1, 1), 1 if layout else cards
    state = floats_of(lambda: protocol.init(problem, size._replace(machines=size.per_round), random_key(0)))
    local = getattr(protocol.rounds, "local", None)
    steps = int(local.steps_of_machines(problem, start.plan).max()) if local is not None and local.walks else 0
    walked = steps * size.per_round * problem.dimension / divided
    records = prod(start.inputs.samples.shape[1:]) * floats_of(lambda: problem.take(0, 0)) / divided
    total = columns * draws * 2 * (state + walked) + draws * (records + 2 * numbers_drawn(start))
    return 4 * total / (cards if layout else 1)


@programs_for("gpu")
def plan_rows(experiment: Experiment, card: str, say: Say) -> list[PlanRow]:
    """Return one row for each sweep of an experiment, in the chunks in which a run computes it on one card."""
    found, prepared = [], ready_experiment(experiment, say)
    todo = prepared.jobs if prepared.before is None else [*prepared.before.jobs, *prepared.jobs]
    for job in {job.identity: job for job in todo}.values():
        say(f"compiling {job.label}")
        start = job.prepare()
        chunk = program(start.first, start.sizes, card, keep=bool(start.keep), shared=start.common_noise)
        made = Program.of(chunk)
        chunks = prod(ceil(runs / size) for runs, size in zip(start.runs, start.sizes, strict=True))
        taken = seconds(made.kernels, made.moved, CARDS[card])
        sizes = "".join(f", {name} {value:g}" for name, value in job.shape.items() if value is not None)
        found.append(PlanRow(job.label + sizes, job.runs, chunks, peak_bytes(chunk, start), chunks * taken))
    return found


def table(found: Sequence[Row], card: str, cards: int = 1) -> Table:
    """Return a table of compiled programs with their predicted costs, one row per program.

    Args:
        found: programs, as `rows` yields them.
        card: name of the card for which they were compiled, a key of `CARDS`.
        cards: number of cards.
    """
    title = f"{cards} × {CARDS[card].name}, jax {jax.__version__}: compiled, not run. Values of one round and one card"
    columns = ("method", "runs", "kernels", "MB by hand", "MB compiled", "memory, MB", "collectives", "products", "µs")
    table = titled(title, columns)
    for row in found:
        numbers = (row.kernels, row.least / 1e6, row.moved / 1e6, row.memory / 1e6)
        collectives = ", ".join(f"{number:.3g} {kind}" for kind, number in row.collectives.items())
        last = collectives, ", ".join(row.products), f"{1e6 * row.seconds:.3g}"
        table.add_row(row.name, row.runs, *(f"{number:.3g}" for number in numbers), *last)
    return table


def plan_table(found: Sequence[PlanRow], card: str) -> Table:
    """Return a table of an experiment's sweeps and their total time."""
    room = int(USABLE * CARDS[card].memory)
    title = f"{CARDS[card].name}, jax {jax.__version__}: a prediction, compiled and not run, without compilation"
    table = titled(title, ("sweep", "runs", "chunks", "memory, GiB", "fits", "seconds"))
    for row in found:
        fits = "yes" if row.memory <= room else "no"
        table.add_row(row.name, str(row.runs), str(row.chunks), f"{row.memory / GIB:.3g}", fits, f"{row.seconds:.3g}")
    table.add_row("total", str(sum(row.runs for row in found)), "", "", "", f"{sum(row.seconds for row in found):.3g}")
    return table


def titled(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table. Columns after the first are aligned to the right."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    return table


def as_json(found: Iterable[Row | PlanRow], card: str, cards: int = 1) -> dict[str, Any]:
    """Return rows as JSON values, with the card and jax's version. Their times are predictions."""
    known = {"card": card, "cards": cards, "jax": jax.__version__, "kind": "compiled, not run"}
    return known | {"results": [row._asdict() for row in found]}
