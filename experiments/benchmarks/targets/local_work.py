"""FedAvg of a network compared with hand-written JAX code, its products, and client state of many machines."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from measures import peak_of_run, ratio_side_by_side

from fedprivjax.bench.fedavg import BATCH, MACHINES, arguments, by_hand, make, random_problem
from fedprivjax.bench.timing import Line, compiled_run, in_a_process, seconds_by_turn
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.plan.participation import Uniform
from fedprivjax.problem.networks import MLP
from fedprivjax.protocols import FedAvg, Scaffold

ROUNDS = 3  # of FedAvg
TWOS = (1000, 1000)  # two machines of this network are trained at once
COHORT, FEW, MANY, STATE_STEPS = 100, 100, 10_000, 10  # of SCAFFOLD
TIMED_ROUNDS = 20, 60  # a round's time is the difference, which excludes the first allocation of the state


def lines() -> Iterator[Line]:
    """Yield the ratio of FedAvg's time to hand-written code, and SCAFFOLD's time and memory with many machines."""
    yield Line("FedAvg, a network of 2·10⁵ parameters, over a round by hand", ratio(), "ratio", "≤ 1.2")
    name = "products in the program of 110 rounds of 9 machines in twos, over 100 rounds of 10"
    yield Line(name, products_of(110, 9) / products_of(100, 10), "ratio", "≤ 1")
    many = f"SCAFFOLD, {MANY} machines"
    yield Line(f"{many} over {FEW}, a round of {COHORT}", in_a_process(ratio_of_machines), "ratio", "≤ 1.3")
    yield Line(f"{many}, peak memory beyond its state", in_a_process(beyond_state), "MB", "≤ 500")


def products_of(rounds: int, per_round: int) -> int:
    """Return the number of products in the program of FedAvg with a network that is trained on two machines at once."""
    problem = random_problem(MACHINES, BATCH, MLP(TWOS))
    start = ready(
        FedAvg(local_steps=1, batch=BATCH, step_size=0.05), problem, Uniform(MACHINES, per_round), rounds=rounds
    )
    return run_program.lower(start.arguments, start.static).as_text().count("dot_general")


def ratio() -> float:
    """Return the median ratio of a run's time to that of `by_hand`, measured in turn."""
    start = make(ROUNDS)
    return ratio_side_by_side(compiled_run(start), partial(by_hand, *arguments(start)), repeats=9)


def make_scaffold(machines: int, rounds: int) -> ReadyRun:
    """Return a prepared run of SCAFFOLD with d = 7850, cohorts of 100, and 10 steps of 10 records."""
    method = Scaffold(local_steps=STATE_STEPS, batch=BATCH, sampler="replacement", step_size=0.01)
    problem = random_problem(machines, 2)
    return ready(method, problem, Uniform(machines, COHORT), rounds=rounds, metrics=(), eval_every=rounds)


def ratio_of_machines() -> float:
    """Return the ratio of a round's time with many machines to that with few, from medians over turns."""
    short, long = TIMED_ROUNDS
    sizes = [(machines, rounds) for machines in (FEW, MANY) for rounds in TIMED_ROUNDS]
    jobs = {f"{machines} {rounds}": compiled_run(make_scaffold(machines, rounds)) for machines, rounds in sizes}
    taken = seconds_by_turn(jobs, repeats=9)
    few, many = (np.median(taken[f"{machines} {long}"] - taken[f"{machines} {short}"]) for machines in (FEW, MANY))
    return float(many / few)


def beyond_state() -> float:
    """Return the peak memory of this process after one run with many machines, less its client state, in MB."""
    start = make_scaffold(MANY, TIMED_ROUNDS[0])
    return peak_of_run(start)[1] - start.costs["client_state_bytes"] / 2**20
