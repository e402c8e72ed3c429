"""What becomes of noise on running sums in the points that a protocol moves to and reports."""

from collections.abc import Iterator

import numpy as np

from fedprivjax.plan.schedule import Schedule

AT_ONCE = 2**22  # pairs of messages


def steps(rounds: int) -> np.ndarray:
    """From the noise z_1, …, z_T in the aggregates to that in w_2, …, w_{T+1}, over the step: [rounds, rounds]."""
    return -np.tril(np.ones((rounds, rounds)))


def anytime(rounds: int) -> np.ndarray:
    """From the noise in the aggregates to that in x_2, …, x_{T+1}, the means of w_1, w_2, … with weights 1, 2, …, over
    the step: [rounds, rounds]."""
    t = np.arange(1.0, rounds + 1)
    return 2 / ((t + 1) * (t + 2))[:, None] * np.cumsum((t + 1)[:, None] * steps(rounds), axis=0)


def anytime_workload(schedule: Schedule, shares: np.ndarray, messages: int) -> np.ndarray:
    """V, with `tr(V·(FᵀF)⁻¹)` the variance of one coordinate of the noise in x_2, …, x_{T+1}, added up over rounds, at
    a step and σ of 1, of all machines with one factor F of norm 1 in every column: float64 [messages, messages].

    Args:
        schedule: who sends when; with the gaps as they are drawn.
        shares: each machine's part of the largest μ, [machines].
        messages: the most that a machine sends.

    >>> from fedprivjax.plan.participation import Full
    >>> anytime_workload(Full(2).draw(1, np.random.default_rng(0)), np.ones(2), 1).tolist()  # (2/3)² of half of 1
    [[0.2222222222222222]]
    """
    standing = np.cumsum(anytime(schedule.size.rounds)[:, ::-1], axis=1)[:, ::-1]  # an increment's noise stays
    gram, total = standing.T @ standing / schedule.divisor**2, np.zeros((messages, messages))
    for machines, rounds in sent_rounds(schedule):
        sent = rounds.shape[1]
        each = gram[rounds[:, :, None], rounds[:, None, :]]
        total[:sent, :sent] += np.tensordot(shares[machines] ** -2.0, each, 1)
    return total


def sent_rounds(schedule: Schedule) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Machines that send equally many messages, [some], and the rounds in which they do, from 0, [some, messages]: all
    that send any, a few at a time."""
    slots = np.flatnonzero(schedule.present.ravel())
    slots = slots[np.argsort(schedule.participants.ravel()[slots], kind="stable")]
    rounds = slots // schedule.size.per_round
    machines, first, sent = np.unique(schedule.participants.ravel()[slots], return_index=True, return_counts=True)
    for messages in np.unique(sent):
        alike = np.flatnonzero(sent == messages)
        for some in np.array_split(alike, -(-alike.size * messages**2 // AT_ONCE)):
            yield machines[some], rounds[first[some][:, None] + np.arange(messages)]
