"""DP-mu2-FL in NumPy, from the papers (Reshef & Levy 2024 and 2025), checked against every case of dp_mu2.npz."""

from pathlib import Path

import numpy as np
from check_vectors import check, load


def gradients(x, features, labels):
    """Gradients of the softmax loss at x, one for every example: shape [examples, d]."""
    scores = features @ x.reshape(-1, features.shape[1]).T
    residuals = np.exp(scores - scores.max(axis=1, keepdims=True))
    residuals /= residuals.sum(axis=1, keepdims=True)
    residuals[np.arange(len(labels)), labels] -= 1
    return (residuals[:, :, None] * features[:, None, :]).reshape(len(labels), x.size)


def clipped(rows, bound):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, bound / np.maximum(norms, 1e-30))


def projected(w, radius):
    return w * min(1, radius / max(np.linalg.norm(w), 1e-30))


def step(inputs, state):
    """One round. State: x_t, x_{t-1}, w_t, q, and every machine's latest noise after each round."""
    t, machines, setting = inputs["round"], inputs["participants"], inputs["settings"]
    start = inputs["start"].astype(float)
    nothing = np.zeros((inputs["machines"] + 1, start.size))  # the last row is for empty slots, machine -1
    x, x_before, w, q, noises = state or (start, start, start, 0 * start, [nothing])
    examples = inputs["features"].reshape(-1, inputs["features"].shape[-1]), inputs["labels"].reshape(-1)
    increments = t * gradients(x, *examples) - (t - 1) * gradients(x_before, *examples)
    increments = clipped(increments, setting["clip"] or np.inf)
    messages = increments.reshape(len(machines), -1, start.size).mean(axis=1)
    noises.append(noises[-1].copy())
    if "message_noise" in inputs:  # fresh noise of a machine: the sum of its recorded differences
        noises[t][machines] += inputs["message_noise"]
        messages = messages + noises[t][machines] - noises[t - 1][machines]
    q = q + messages.sum(axis=0) / inputs["divisor"]
    eta, radius = setting["step_size"], inputs["header"]["constraint"]["settings"]["radius"]
    server_noise = inputs.get("server_noise", 0)
    w = projected(w - eta * (q + server_noise), radius)
    x_after = x + 2 / (t + 2) * (w - x)
    return {"query": x, "messages": messages, "state.w": w, "params": x}, (x_after, x, w, q, noises)


if __name__ == "__main__":
    for name, case in load(Path(__file__).with_name("dp_mu2.npz")).items():
        print(f"{name}: {', '.join(check(case, step))} agree")
