"""What becomes of noise on running sums in the points that a protocol moves to and reports."""

import numpy as np


def steps(rounds: int) -> np.ndarray:
    """From the noise z_1, …, z_T in the aggregates to that in w_2, …, w_{T+1}, over the step: [rounds, rounds]."""
    return -np.tril(np.ones((rounds, rounds)))


def anytime(rounds: int) -> np.ndarray:
    """From the noise in the aggregates to that in x_2, …, x_{T+1}, the means of w_1, w_2, … with weights 1, 2, …, over
    the step: [rounds, rounds]."""
    t = np.arange(1.0, rounds + 1)
    return 2 / ((t + 1) * (t + 2))[:, None] * np.cumsum((t + 1)[:, None] * steps(rounds), axis=0)


def anytime_workload(rounds: int, messages: int) -> np.ndarray:
    """From the noises on a machine's messages, sent at equal intervals, to that in x_2, …, x_{T+1}: [rounds, messages].

    >>> anytime_workload(3, 1).ravel().round(3).tolist()  # noise of the first round's aggregate, which stands
    [-0.667, -1.333, -2.0]
    """
    sent = np.arange(rounds)[:, None] * messages // rounds >= np.arange(messages)
    return anytime(rounds) @ sent
