"""DPZero as a plain NumPy loop over records, from the paper's formulas."""

import numpy as np


def dpzero(loss, start, samples, directions, *, step, radius, clip, project):
    """Return the iterates w_2 to w_{T+1}, and the messages, [rounds, per_round].

    Args:
        loss: `(w, record) -> number`.
        samples: records, [rounds, per_round], or one more axis, of the batch whose mean is a message.
    """
    w, points, messages = start, [], []
    for records, u in zip(samples, directions, strict=True):
        row = []
        for batch in records:
            slopes = [(loss(w + radius * u, z) - loss(w - radius * u, z)) / (2 * radius) for z in np.atleast_1d(batch)]
            row.append(np.mean(np.clip(slopes, -clip, clip)))
        w = project(w - step * np.mean(row) * u)
        points.append(w)
        messages.append(row)
    return points, np.array(messages)
