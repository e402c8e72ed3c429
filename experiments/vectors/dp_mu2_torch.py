"""DP-mu2-FL in PyTorch, per-example gradients by autograd, checked against every case of dp_mu2.npz."""

import platform
from pathlib import Path

import torch
from check_vectors import check, load
from torch.func import grad, vmap


def loss(x, features, label):
    return torch.nn.functional.cross_entropy(x.reshape(-1, len(features)) @ features, label)


def clipped(rows, bound):
    return rows * (bound / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1)


def step(inputs, state):
    """One round. State: x_t, x_{t-1}, w_t, q, and every machine's latest noise."""
    t, machines, setting = inputs["round"], torch.as_tensor(inputs["participants"]).long(), inputs["settings"]
    start = torch.as_tensor(inputs["start"])
    nothing = torch.zeros(inputs["machines"] + 1, len(start))  # the last row is for empty slots, machine -1
    x, x_before, w, q, last = state or (start, start, start, 0 * start, nothing)
    features = torch.as_tensor(inputs["features"]).float().reshape(-1, inputs["features"].shape[-1])
    labels = torch.as_tensor(inputs["labels"]).long().reshape(-1)
    now, before = (vmap(grad(loss), (None, 0, 0))(point, features, labels) for point in (x, x_before))
    increments = clipped(t * now - (t - 1) * before, setting["clip"] or torch.inf)
    messages = increments.reshape(len(machines), -1, len(start)).mean(dim=1)
    if "message_noise" in inputs:  # fresh noise of a machine: the sum of its recorded differences
        fresh = last[machines] + torch.as_tensor(inputs["message_noise"])
        messages = messages + fresh - last[machines]
        last = last.index_put((machines,), fresh)
    q = q + messages.sum(dim=0) / inputs["divisor"]
    w = w - setting["step_size"] * (q + torch.as_tensor(inputs.get("server_noise", 0.0)))
    w = w * (inputs["header"]["constraint"]["settings"]["radius"] / w.norm().clamp(min=1e-30)).clamp(max=1)
    x_after = x + 2 / (t + 2) * (w - x)
    return {"query": x, "messages": messages, "state.w": w, "params": x}, (x_after, x, w, q, last)


if __name__ == "__main__":
    for name, case in load(Path(__file__).with_name("dp_mu2.npz")).items():
        print(f"{name} ({case.header['sha256'][:8]}): {', '.join(check(case, step))} agree")
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}")
