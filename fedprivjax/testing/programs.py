"""Properties of the compiled program: its structure is stable, and new numbers do not recompile it."""

from dataclasses import replace
from functools import partial
from typing import Any

import chex
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.numbers import with_numbers
from fedprivjax.engine.prepare import Arguments
from fedprivjax.engine.simulate import execute, run_program, trajectory
from fedprivjax.method.interface import as_leaves
from fedprivjax.method.seen import seen_of
from fedprivjax.plan.seeds import Seeds, protocol_key
from fedprivjax.problem.constraints import Ball
from fedprivjax.testing.trial import Trial, apart, close, first_noise, programs_after


def stable_structure(trial: Trial) -> None:
    """Check that a round keeps the state's structure and dtypes, and that points have the parameters' structure."""
    problem, size = trial.problem, trial.start.plan.size

    def one_round(arguments: Arguments):
        protocol, inputs, key = arguments.protocol, jax.tree.map(lambda leaf: leaf[0], arguments.inputs), arguments.key
        state = protocol.init(problem, size, protocol_key(key))
        memory, noise_state, noise = first_noise(arguments, size)
        after, info = protocol.round(problem, state, inputs, noise, protocol_key(key, 1))
        points = protocol.output(state), seen_of(protocol).query(state), protocol.iterates(state)
        return (state, memory), (after, noise_state), points, info

    before, after, (output, query, iterates), info = jax.eval_shape(one_round, trial.start.arguments)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, before)
    for point in (output, query, *iterates.values()):
        chex.assert_trees_all_equal_shapes_and_dtypes(point, as_leaves(problem.start))
    kinds = {leaf.dtype.kind for leaf in jax.tree.leaves(before)}
    assert kinds <= set("fiubV"), f"a state must hold real numbers, integers, flags or keys, got kinds {kinds}"
    assert all(leaf.shape == () for leaf in jax.tree.leaves(info)), "info must hold scalars"


def jit_equals_eager(trial: Trial) -> None:
    """Check that two rounds without compilation give the compiled program's metrics, whose scale is that of the run."""
    with jax.disable_jit():
        values = trajectory(*_first_rounds(trial, 2, eval_every=2))[1]
    for name, value in values.items():
        largest = np.abs(_recorded(trial, name, [*range(trial.rounds)])).max()
        close(value[-1:].T.ravel(), _recorded(trial, name, [1]), 1e-4, name, largest)


def new_numbers_do_not_recompile(trial: Trial) -> None:
    """Check that other hyper-parameters, constraint radii, seeds and δ run with the same program."""
    base, problem = trial.run, trial.problem
    before = programs_after(run_program, partial(execute, trial.start))
    smaller = {name: 0.7 * value for name, value in trial.numbers.items()}
    if isinstance(problem.constraint, Ball) and Ball(0.8 * problem.constraint.radius).contains(problem.start):
        problem = replace(problem, constraint=Ball(0.8 * problem.constraint.radius))
    other = trial.ready(with_numbers(trial.start.protocol, smaller), problem, seed=Seeds(5, 6, 7), delta=1e-6)
    params = execute(other).params
    assert run_program._cache_size() <= before, "new numbers must not recompile the program"
    apart(ravel_pytree(params)[0], ravel_pytree(base.params)[0], "new numbers must change the run")


def prefix_of_a_longer_run(trial: Trial) -> None:
    """Check that a run of half the rounds, with the same noise, is the first half of the run.

    The two runs differ in `eval_every`, which must not matter.
    """
    every = trial.rounds // 4
    _, values = run_program(*_first_rounds(trial, 2 * every, every))
    for name, value in values.items():
        close(np.ravel(value.T), _recorded(trial, name, [every - 1, 2 * every - 1]), 1e-5, name)


def _first_rounds(trial: Trial, rounds: int, eval_every: int):
    """Return the program's arguments and static configuration for the first rounds of the trial's run."""
    start = trial.start
    arguments, size = start.arguments, start.static.size._replace(rounds=rounds)
    cut = jax.tree.map(lambda leaf: leaf[:rounds], (arguments.inputs, arguments.host_noise, arguments.mechanism.inputs))
    mechanism: Any = arguments.mechanism
    mechanism = replace(mechanism, inputs=cut[2])
    static = start.static._replace(size=size, eval_every=eval_every)
    return arguments._replace(inputs=cut[0], host_noise=cut[1], mechanism=mechanism), static


def _recorded(trial: Trial, name: str, at: list[int]) -> np.ndarray:
    """Return a metric of the trial's run at the evaluations `at`, concatenated over iterates."""
    return np.concatenate([metrics[name][at] for metrics in trial.run.iterates.values() if name in metrics])
