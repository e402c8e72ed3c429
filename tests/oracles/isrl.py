"""Plain NumPy transcriptions of Lowy & Razaviyayn's algorithms 1 and 2 on given samples and noise, in float64."""

import numpy as np
from oracles.optimizers import plain
from scipy.optimize import minimize


def project(w, radius):
    return w if radius is None else w * min(1.0, radius / max(np.linalg.norm(w), 1e-30))


def means(gradients, w, samples, weights, present):
    """The cohort's mean of the machines' weighted gradients; gradients(w, samples) -> [..., d]."""
    messages = np.einsum("mk,mkd->md", weights, gradients(w, samples))
    return (present[:, None] * messages).sum(axis=0) / present.sum()


def minibatch(gradients, plan, start, *, step, radius=None, noise=0.0, modulus=0.0, window=None, server=plain):
    """Algorithm 1: the points w_0..w_R, and what is reported."""
    points, stepped = [start], server()
    for r, (samples, weights, present) in enumerate(plan):
        g = means(gradients, points[-1], samples, weights, present) + (noise[r] if np.ndim(noise) else 0.0)
        points.append(project(stepped(points[-1], g, step), radius))
    if window is not None:
        return points, np.mean([start] * max(0, window - len(plan)) + points[1:][-window:], axis=0)
    gamma = (1 - modulus * step) ** -(1.0 + np.arange(len(plan)))
    return points, np.average(points[:-1], axis=0, weights=gamma)


def accelerated(gradients, plan, start, *, places, radius, noise=0.0, modulus=0.0, regularisation=0.0):
    """Algorithm 2 with the prox step as it is printed, minimised numerically; `places` are (r, v) of each round."""
    w = average = start
    points, queries = [start], []
    mu = modulus + regularisation
    for t, ((samples, weights, present), (r, v)) in enumerate(zip(plan, places, strict=True)):
        if r == 0:
            points.append(average)
            continue
        w = average if r == 1 else w
        alpha, eta = 2 / (r + 1), 4 * v / (r * (r + 1))
        share = alpha * ((1 - alpha) * mu + eta) / (eta + (1 - alpha**2) * mu)
        middle = (1 - share) * average + share * w
        queries.append(middle)
        g = means(gradients, middle, samples, weights, present) + (noise[t] if np.ndim(noise) else 0.0)
        g = g + regularisation * (middle - start)
        w = prox(w, middle, g, alpha, eta, mu, radius)
        average = alpha * w + (1 - alpha) * average
        points.append(average)
    return points, queries


def prox(w, middle, g, alpha, eta, mu, radius):
    """argmin over the ball of α[⟨g,z⟩ + μ/2‖w_md−z‖²] + [(1−α)μ/2 + η/2]‖w−z‖²."""
    keep = (1 - alpha) * mu + eta

    def value(z):
        return alpha * (g @ z + mu / 2 * np.sum((middle - z) ** 2)) + keep / 2 * np.sum((w - z) ** 2)

    def slope(z):
        return alpha * (g + mu * (z - middle)) + keep * (z - w)

    inside = {"type": "ineq", "fun": lambda z: radius**2 - z @ z, "jac": lambda z: -2 * z}
    scale = keep + alpha * mu
    found = minimize(
        lambda z: value(z) / scale,
        project(w, radius),
        jac=lambda z: slope(z) / scale,
        constraints=[inside],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x


def local(gradients, plan, start, *, step, radius=None, noise=None, window=None, server=plain, server_step=1.0):
    """Local SGD: every machine of the cohort walks over its records one by one; noise [rounds, steps, machines, d]."""
    points, stepped = [start], server()
    for r, (samples, _, present) in enumerate(plan):
        ends = np.repeat(points[-1][None], len(samples), axis=0)
        for k in range(samples.shape[1]):
            for i, end in enumerate(ends):
                g = gradients(end, samples[i, k]) + (0.0 if noise is None else noise[r, k, i])
                ends[i] = project(end - step * g, radius)
        end = (present[:, None] * ends).sum(axis=0) / present.sum()
        points.append(project(stepped(points[-1], points[-1] - end, server_step), radius))
    if window is None:
        return points, np.mean(points[:-1], axis=0)
    return points, np.mean([start] * max(0, window - len(plan)) + points[1:][-window:], axis=0)
