"""DECOR (Allouah, Koloskova, El Firdoussi, Jaggi & Guerraoui 2024): its published accountant, and views by enumeration.

The formulas are those of `rdp_account` and `user_level_rdp` in the authors' `utils/dp_account.py`.
"""

from itertools import combinations

import numpy as np


def rdp_account(own, shared, clip, adjacency):
    """Return RDP(α)/α of one iteration: 2C² times the largest diagonal entry of the inverse of σ²·I + σ_pair²·L."""
    machines = len(adjacency)
    sigma = own**2 * np.eye(machines) + shared**2 * (np.diag(adjacency.sum(axis=1)) - adjacency)
    solved = [np.linalg.solve(sigma, np.eye(machines)[i])[i] for i in range(machines)]
    return 2 * clip**2 * max(solved)


def user_level(rounds, rdp, delta):
    """Return ε of `rounds` iterations by the authors' conversion."""
    return rounds * rdp + 2 * np.sqrt(rounds * rdp * np.log(1 / delta))


def adjacency(name, machines, seed=0):
    """Return a graph's matrix, written independently of the package: by name, or random with a ring in it."""
    found = np.zeros((machines, machines))
    if name == "complete":
        return 1 - np.eye(machines)
    if name == "torus":
        side = int(machines**0.5)
        for u in range(machines):
            row, column = divmod(u, side)
            for v in (row * side + (column + 1) % side, (row + 1) % side * side + column):
                found[u, v] = found[v, u] = 1
        return found
    for u in range(machines):
        found[u, (u + 1) % machines] = found[(u + 1) % machines, u] = 1
    if name == "random":
        more = np.triu(np.random.default_rng(seed).random((machines, machines)) < 0.3, 1)
        found = np.maximum(found, more + more.T)
    return found


def seen_exposure(graph, shared, machine, known, summed=False):
    """Return μ·σ/Δ of a machine against an adversary who sees messages, or their sum, and the seeds of `known`.

    The noises themselves are part of the view: own noises of known machines, and those of all edges at known machines.
    """
    machines = len(graph)
    edges = [(u, v) for u, v in combinations(range(machines), 2) if graph[u, v]]
    messages = np.zeros((machines, machines + len(edges)))  # as functions of independent standard normals
    messages[:, :machines] = np.eye(machines)
    for k, (u, v) in enumerate(edges):
        messages[u, machines + k], messages[v, machines + k] = shared, -shared
    seeds = list(known) + [machines + k for k, edge in enumerate(edges) if set(edge) & set(known)]
    functions = np.ones((1, machines)) if summed else np.eye(machines)
    view = np.vstack([functions @ messages, np.eye(machines + len(edges))[seeds]])
    shift = np.append(functions[:, machine], np.zeros(len(seeds)))
    return float(np.sqrt(shift @ np.linalg.pinv(view @ view.T, rcond=1e-12) @ shift))


def worst_exposure(graph, shared, machine, colluders, summed=False):
    """Return the largest `seen_exposure` over all sets of colluders."""
    others = [i for i in range(len(graph)) if i != machine]
    return max(seen_exposure(graph, shared, machine, known, summed) for known in combinations(others, colluders))
