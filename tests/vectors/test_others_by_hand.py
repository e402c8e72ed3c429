"""FedAvg, noisy minibatch SGD and tree momentum, in NumPy from their papers, agree with the reference vectors."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments/vectors"


def adam(g, memory, server):
    """Adam's direction along the gradients g, and its memory: count and the two means."""
    count, first, second = memory or (0, 0 * g, 0 * g)
    setting = dict(zip(server["settings"]["names"], server["settings"]["values"], strict=True))
    count, first = count + 1, setting["b1"] * first + (1 - setting["b1"]) * g
    second = setting["b2"] * second + (1 - setting["b2"]) * g**2
    corrected = second / (1 - setting["b2"] ** count)
    return first / (1 - setting["b1"] ** count) / (np.sqrt(corrected) + 1e-8), (count, first, second)


def fedavg(tools, change=()):
    """Return the step of FedAvg with local steps, and noise in steps, in messages, or at the server."""

    def local_steps(inputs, slot, w, radius):
        """Points of one machine after each of its steps, [steps, d]."""
        setting, v, points = inputs["settings"], w, []
        machine = inputs["unit"] == "machine"
        for k in range(inputs["local_steps"]):
            size = inputs["records"].shape[1] // inputs["local_steps"]
            block = slice(k * size, (k + 1) * size)
            used = inputs["weights"][slot, block] != 0
            rows = tools.gradients(v, inputs["features"][slot, block][used], inputs["labels"][slot, block][used])
            rows = rows if machine or setting["clip"] is None else tools.clipped(rows, setting["clip"])
            fixed = inputs["unit"] == "record" or setting["local_steps"] is not None
            g = rows.sum(axis=0) / (setting["batch"] if fixed else max(1, used.sum()))
            g = g + (inputs["step_noise"][slot, k] if "step_noise" in inputs else 0)
            v = tools.projected(v - setting["step_size"] * g, radius)
            points.append(v)
        return np.array(points)

    def step(inputs, state):
        setting, (before, memory) = inputs["settings"], state or ([inputs["start"].astype(float)], None)
        inputs, w = {**inputs, "unit": setting["unit"]}, before[-1]
        radius = inputs["header"]["constraint"]["settings"]["radius"]
        filled = inputs["participants"] >= 0
        at = [before[-1 - s] for s in inputs.get("staleness", np.zeros(len(filled), int))]
        points = np.array([local_steps(inputs, slot, start, radius) for slot, start in enumerate(at)])
        messages = points[:, -1] - at
        if setting["unit"] == "machine":
            messages = tools.clipped(messages, setting["update_clip"])
        messages = messages + inputs.get("message_noise", 0)
        outputs = {"query": w, "messages": messages}
        if setting["unit"] == "record":
            starts = np.repeat(w[None, None], len(points), axis=0)
            outputs["local_steps"] = np.diff(points, axis=1, prepend=starts)
        if "messages" in inputs:  # rounded at random
            del outputs["messages"]
            messages = inputs["messages"]
        divisor = inputs["divisor"] if setting["unit"] == "machine" and "count" not in change else max(1, filled.sum())
        factors = np.where(filled, inputs.get("answer_weights", 1.0), 0)
        mean = factors @ np.where(filled[:, None], messages, 0) / divisor + inputs.get("server_noise", 0)
        if setting["server"] is not None:
            direction, memory = adam(-mean, memory, setting["server"])
            mean = -setting["server_step"] * direction
        w = tools.projected(w + mean, radius)
        return {**outputs, "params": w}, ([*before, w], memory)

    return step


def minibatch_sgd(tools):
    """Return the step of noisy minibatch SGD with the weighted average, or that of a window."""

    def step(inputs, state):
        setting, start = inputs["settings"], inputs["start"].astype(float)
        eta, radius = setting["step_size"], inputs["header"]["constraint"]["settings"]["radius"]
        iterates, memory = state or ([start], None)
        w, filled = iterates[-1], inputs["participants"] >= 0
        features, labels = inputs["features"], inputs["labels"]
        rows = tools.gradients(w, features.reshape(-1, features.shape[-1]), labels.reshape(-1))
        rows = tools.clipped(rows, setting["clip"]).reshape(*labels.shape, -1)
        messages = (inputs["weights"][:, :, None] * rows).sum(axis=1) + inputs.get("message_noise", 0)
        mean = np.where(filled[:, None], messages, 0).sum(axis=0) / max(1, filled.sum())
        if setting["server"] is not None:
            mean, memory = adam(mean, memory, setting["server"])
        after = tools.projected(w - eta * mean, radius)
        iterates = [*iterates, after]
        r = np.arange(inputs["round"])
        weights = (1 - setting["strong_convexity"] * eta) ** -(r + 1.0)
        params = np.average(iterates[:-1], axis=0, weights=weights)
        if setting["window"] is not None:
            params = np.mean([*[start] * setting["window"], *iterates[1:]][-setting["window"] :], axis=0)
        return {"query": w, "messages": messages, "iterate.last": after, "params": params}, (iterates, memory)

    return step


def momentum(tools, weight_before=lambda alpha: 1 - alpha):
    """Return the step of normalised SGD with a momentum, whose recorded noise is that of m_t and of m_{t−1}."""

    def step(inputs, state):
        setting, start = inputs["settings"], inputs["start"].astype(float)
        (w, before), alpha = state or (start, 0 * start), setting["alpha"]
        features, labels = inputs["features"], inputs["labels"]
        rows = tools.gradients(w, features.reshape(-1, features.shape[-1]), labels.reshape(-1))
        rows = tools.clipped(rows, setting["clip"]).reshape(*labels.shape, -1)
        own = alpha * (inputs["weights"][:, :, None] * rows).sum(axis=1)
        m = (1 - alpha) * before + own.sum(axis=0) / inputs["divisor"]
        now, last = (inputs.get(f"message_noise.{name}", np.zeros_like(own)) for name in ("now", "before"))
        noisy = m + now.sum(axis=0) / inputs["divisor"] + inputs.get("server_noise.now", 0)
        step = setting["step_size"] * setting["step_scale"]
        after = tools.projected(
            w - step * noisy / np.linalg.norm(noisy), inputs["header"]["constraint"]["settings"]["radius"]
        )
        messages = own + now - weight_before(alpha) * last
        return {"query": w, "messages": messages, "state.momentum": m, "iterate.last": after}, (after, m)

    return step


def dsgd(tools, mixed=lambda mixing: mixing):
    """Return the step of DSGD: every machine's own point, message and step, and the mixing of all states."""

    def step(inputs, state):
        setting, start = inputs["settings"], inputs["start"].astype(float)
        x, memories = state or (np.tile(start, (inputs["machines"], 1)), [None] * inputs["machines"])
        radius, noise = inputs["header"]["constraint"]["settings"]["radius"], inputs.get("message_noise", 0 * x)
        messages, half = np.zeros_like(x), np.zeros_like(x)
        for i, w in enumerate(x):
            rows = tools.clipped(tools.gradients(w, inputs["features"][i], inputs["labels"][i]), setting["clip"])
            messages[i] = direction = inputs["weights"][i] @ rows + noise[i]
            if setting["server"] is not None:
                direction, memories[i] = adam(direction, memories[i], setting["server"])
            half[i] = tools.projected(w - setting["step_size"] * direction, radius)
        w = mixed(inputs["mixing"])
        if setting["server"] is not None:
            means = [w @ np.array([memory[place] for memory in memories]) for place in (1, 2)]
            memories = [(memories[0][0], *both) for both in zip(*means, strict=True)]
        after = w @ half
        outputs = {"query": x[0], "messages": messages, "state.server.w": after, "params": after.mean(axis=0)}
        return outputs, (after, memories)

    return step


def test_dsgd_by_hand_agrees(tools):
    checker, by_hand = tools
    cases = checker.load(FOLDER / "dsgd.npz")
    assert {"ring", "ring-no-noise", "torus", "in-turn", "pairwise", "adam"} == set(cases)
    for name, case in cases.items():
        assert checker.check(case, dsgd(by_hand)) == ["messages", "params", "query", "state.server.w"], name
    with pytest.raises(checker.Difference) as found:
        checker.check(cases["torus"], dsgd(by_hand, lambda mixing: (mixing + np.eye(6)) / 2))
    assert (found.value.round, found.value.quantity) == (1, "state.server.w")


@pytest.mark.parametrize("file", ["tree_momentum", "reduced_tree_momentum"])
def test_a_momentum_by_hand_agrees(tools, file):
    checker, by_hand = tools
    cases = checker.load(FOLDER / f"{file}.npz")
    assert {"none", "server", "server-no-noise"} <= set(cases)
    for name, case in cases.items():
        found = checker.check(case, momentum(by_hand))
        assert found == ["iterate.last", "messages", "query", "state.momentum"], name


def test_a_whole_noise_subtracted_is_a_wrong_message_of_a_momentum(tools):
    checker, by_hand = tools
    case = checker.load(FOLDER / "tree_momentum.npz")["none"]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, momentum(by_hand, weight_before=lambda alpha: 1.0))
    assert (found.value.round, found.value.quantity) == (2, "messages")


@pytest.mark.parametrize(("file", "method"), [("fedavg", fedavg), ("noisy_minibatch_sgd", minibatch_sgd)])
def test_an_implementation_by_hand_agrees(tools, file, method):
    checker, by_hand = tools
    cases = {n: case for n, case in checker.load(FOLDER / f"{file}.npz").items() if n != "adaptive-clip"}
    assert len(cases) >= 8
    for name, case in cases.items():
        found = checker.check(case, method(by_hand))
        assert {"query", "params"} <= set(found), name
        assert ("messages" in found) == ("messages" not in case.header["given"]), name
        assert ("local_steps" in found) == ("local_steps" in case.arrays), name


def test_the_number_of_machines_that_came_is_a_wrong_divisor(tools):
    checker, by_hand = tools
    case = checker.load(FOLDER / "fedavg.npz")["dropouts"]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, fedavg(by_hand, change=("count",)))
    assert (found.value.round, found.value.quantity) == (1, "params")  # E|S| = 2.127 is no number of machines
