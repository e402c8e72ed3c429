"""SCAFFOLD, written in NumPy from its paper, agrees with the reference vectors: machines keep control variates."""

from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments/vectors"


def local_work(tools, inputs, slot, w, correction):
    """End point of a machine, and the mean of its steps' gradients."""
    setting, v, gradients = inputs["settings"], w, []
    for k in range(inputs["local_steps"]):
        size = inputs["records"].shape[1] // inputs["local_steps"]
        block = slice(k * size, (k + 1) * size)
        used = inputs["weights"][slot, block] != 0
        if not used.any() and "step_noise" not in inputs:  # a machine with fewer steps
            continue
        rows = tools.gradients(v, inputs["features"][slot, block][used], inputs["labels"][slot, block][used])
        rows = rows if setting["clip"] is None else tools.clipped(rows, setting["clip"])
        g = rows.sum(axis=0) / (setting["batch"] if setting["unit"] == "record" else used.sum())
        g = g + (inputs["step_noise"][slot, k] if "step_noise" in inputs else 0)
        gradients.append(g)
        direction = g + (setting["prox"] or 0) * (v - w) + correction
        v = tools.projected(v - setting["step_size"] * direction, inputs["header"]["constraint"]["settings"]["radius"])
    return v, np.mean(gradients, axis=0)


def of_machines(tools, kept=lambda pair, message: pair):
    """Return the step of SCAFFOLD for cases that protect a machine: pairs are clipped, and c_i has no noise."""

    def step(inputs, state):
        setting, d = inputs["settings"], inputs["start"].size
        w, c, own = state or (inputs["start"].astype(float), np.zeros(d), np.zeros((inputs["machines"], d)))
        messages, own = np.zeros((len(inputs["participants"]), 2 * d)), own.copy()
        scale = inputs["local_steps"] * setting["step_scale"] * setting["step_size"]
        for slot, machine in enumerate(inputs["participants"]):
            if machine >= 0:
                v, mean = local_work(tools, inputs, slot, w, c - own[machine])
                pair = np.concatenate([v - w, scale * (mean - own[machine])])
                pair = tools.clipped(pair[None], setting["update_clip"])[0]
                messages[slot] = pair + (inputs["message_noise"][slot] if "message_noise" in inputs else 0)
                own[machine] += kept(pair, messages[slot])[d:] / scale
        moved, changed = np.split(messages.sum(axis=0) / inputs["divisor"] + inputs.get("server_noise", 0), 2)
        query, w = w, tools.projected(w + moved, inputs["header"]["constraint"]["settings"]["radius"])
        c = c + changed * inputs["divisor"] / inputs["machines"] / scale
        outputs = {"query": query, "messages": messages, "params": w}
        return {**outputs, "state.own": own, "state.server.control": c}, (w, c, own)

    return step


def scaffold(tools, scale=lambda inputs: 1 / inputs["machines"]):
    """Return the step of SCAFFOLD for cases that protect nothing or a record."""

    def step(inputs, state):
        start = inputs["start"].astype(float)
        w, c, own = state or (start, 0 * start, np.zeros((inputs["machines"], start.size)))
        messages = np.zeros((len(inputs["participants"]), 2 * start.size))
        own = own.copy()
        for slot, machine in enumerate(inputs["participants"]):
            if machine >= 0:
                v, mean = local_work(tools, inputs, slot, w, c - own[machine])
                messages[slot] = np.concatenate([v - w, mean - own[machine]])
                own[machine] = mean
        moved, changed = np.split(messages.sum(axis=0), 2)
        query, came = w, max(1, np.sum(inputs["participants"] >= 0))
        w = tools.projected(w + moved / came, inputs["header"]["constraint"]["settings"]["radius"])
        c = c + changed * scale(inputs)
        return {"query": query, "messages": messages, "params": w}, (w, c, own)

    return step


def test_scaffold_by_hand_agrees(tools):
    checker, by_hand = tools
    cases = checker.load(FOLDER / "scaffold.npz")
    cases = {n: c for n, c in cases.items() if c.header["settings"]["unit"] != "machine" and not c.header["given"]}
    assert {"plain", "unequal", "record", "poisson-steps", "prox"} <= set(cases)
    for name, case in cases.items():
        assert checker.check(case, scaffold(by_hand)) == ["messages", "params", "query"], name


def test_scaffold_of_machines_by_hand_agrees(tools):
    checker, by_hand = tools
    cases = checker.load(FOLDER / "scaffold.npz")
    for name in ("machine", "machine-local", "machine-no-noise", "dropouts"):
        found = checker.check(cases[name], of_machines(by_hand))
        assert {"messages", "state.own", "state.server.control"} <= set(found), name


def test_a_control_variate_with_its_noise_is_wrong(tools):
    checker, by_hand = tools
    case = checker.load(FOLDER / "scaffold.npz")["machine-local"]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, of_machines(by_hand, kept=lambda pair, message: message))
    assert (found.value.round, found.value.quantity) == (1, "state.own")


def test_a_mean_over_the_cohort_is_a_wrong_control_variate(tools):
    checker, by_hand = tools
    case = checker.load(FOLDER / "scaffold.npz")["plain"]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, scaffold(by_hand, scale=lambda inputs: 1 / inputs["per_round"]))
    assert (found.value.round, found.value.quantity) == (2, "messages")  # c is first used in round 2
