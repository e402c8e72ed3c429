"""Effect of noise on running sums in the iterates that a protocol computes and reports."""

from collections.abc import Iterator

import numpy as np

from fedprivjax.plan.schedule import Schedule

AT_ONCE = 2**22  # largest number of pairs of messages in memory


def steps(rounds: int) -> np.ndarray:
    """Return the map from the aggregates' noise z_1, …, z_T to that in w_2, …, w_{T+1} at step 1; [rounds, rounds]."""
    return -np.tril(np.ones((rounds, rounds)))


def anytime(rounds: int) -> np.ndarray:
    """Return the map from the aggregates' noise to that in x_2, …, x_{T+1} at step 1; [rounds, rounds].

    The points x are the means of w_1, w_2, … with weights 1, 2, ….
    """
    t = np.arange(1.0, rounds + 1)
    return 2 / ((t + 1) * (t + 2))[:, None] * np.cumsum((t + 1)[:, None] * steps(rounds), axis=0)


def anytime_workload(schedule: Schedule, shares: np.ndarray, messages: int) -> np.ndarray:
    """Return V, float64 [messages, messages], for anytime averages.

    `tr(V·(FᵀF)⁻¹)` is the variance of one coordinate of the noise in x_2, …, x_{T+1}, summed over rounds, at step and σ
    equal to 1. All machines use one factor F with unit columns.

    Args:
        schedule: the participation schedule as sampled.
        shares: ratio of each machine's μ to the largest, shape [machines].
        messages: largest number of messages of a machine.

    >>> from fedprivjax.plan.participation import Full
    >>> anytime_workload(Full(2).draw(1, np.random.default_rng(0)), np.ones(2), 1).tolist()  # (2/3)² of half of 1
    [[0.2222222222222222]]
    """
    standing = np.cumsum(anytime(schedule.size.rounds)[:, ::-1], axis=1)[:, ::-1]  # an increment's noise persists
    gram, total = standing.T @ standing / schedule.divisor**2, np.zeros((messages, messages))
    for machines, rounds in sent_rounds(schedule):
        sent = rounds.shape[1]
        each = gram[rounds[:, :, None], rounds[:, None, :]]
        total[:sent, :sent] += np.tensordot(shares[machines] ** -2.0, each, 1)
    return total


def sent_rounds(schedule: Schedule) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield groups of machines with equal numbers of messages, and their rounds, from 0.

    Yields:
        Machines [some] and rounds [some, messages]. Every machine that sends is in one group.
    """
    slots = np.flatnonzero(schedule.present.ravel())
    slots = slots[np.argsort(schedule.participants.ravel()[slots], kind="stable")]
    rounds = slots // schedule.size.per_round
    machines, first, sent = np.unique(schedule.participants.ravel()[slots], return_index=True, return_counts=True)
    for messages in np.unique(sent):
        alike = np.flatnonzero(sent == messages)
        for some in np.array_split(alike, -(-alike.size * messages**2 // AT_ONCE)):
            yield machines[some], rounds[first[some][:, None] + np.arange(messages)]
