"""FedBuff as an event loop in simulated time, in NumPy: every working machine holds its own copy of the model."""

import numpy as np
from oracles.clients import batches_of, walk

BLOCK = 1024  # random numbers that the schedule samples together


def numbers(relative, rng):
    while True:
        yield from zip(relative(rng, BLOCK), rng.random(BLOCK), strict=True)


def fedbuff(gradient, answers, start, *, machines, size, working, hours, relative, rng, rounds, step, steps, **rule):
    """Return the iterates after every step of the server, the hours of these steps, and all (machine, staleness).

    Args:
        gradient: function of a point and a record's index.
        answers: iterator of the (samples, weights) of the answers, in the order in which the server reads them.
        hours: mean delay of every machine.
        relative: function (rng, shape) that samples delays divided by their mean.
        rule: `power` of the staleness weights, `clip` of an update or None, and `oldest`, the largest staleness.
    """
    w, idle, busy, drawn, clock = start.copy(), list(range(machines)), [], numbers(relative, rng), 0.0
    buffer, path, times, seen = [], [], [], []
    while len(path) < rounds:
        while len(busy) < working:
            delay, choice = next(drawn)
            place = int(choice * len(idle))
            idle[place], idle[-1] = idle[-1], idle[place]
            machine = idle.pop()
            busy.append(
                {"machine": machine, "end": clock + hours[machine] * delay, "model": w.copy(), "steps": len(path)}
            )
        clock = min(each["end"] for each in busy)
        for each in [each for each in busy if each["end"] == clock]:
            busy.remove(each)
            idle.append(each["machine"])
            stale = len(path) - each["steps"]
            if stale > rule["oldest"] or len(path) == rounds:
                continue
            samples, weights = next(answers)
            end, _ = walk(gradient, each["model"], batches_of(samples, weights, steps), step=step)
            update = end - each["model"]
            if rule["clip"] is not None:
                update = update * min(1.0, rule["clip"] / np.linalg.norm(update))
            buffer.append(update / (1 + stale) ** rule["power"])
            seen.append((each["machine"], stale))
            if len(buffer) == size:
                w, buffer = w + sum(buffer) / size, []
                path.append(w)
                times.append(clock)
    return np.array(path), np.array(times), np.array(seen)
