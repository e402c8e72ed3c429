"""The members of a sweep: a grid of settings, each calibrated on the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice, require_positive
from fedprivjax.engine.simulate import as_leaves
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy import gdp
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.problem import Problem

SWEPT = {
    "mu": "GDP target; its ε at the sweep's delta for methods that sample records",
    "epsilon": "(ε, δ) target, at the sweep's delta",
    "noise_std": "noise at relative scale 1",
    "step_size": "step",
    "step_scale": "multiple of the step",
    "clip": "bound on a message's norm",
    "radius": "radius of the constraint ball",
}


@dataclass(frozen=True)
class Members:
    """A grid's members, calibrated: protocol and constraint stacked on a leading axis, the rest float64 [members]."""

    protocol: Any
    constraint: Any
    noise_std: np.ndarray
    step_size: np.ndarray
    sensitivity: np.ndarray


def axes_of(over: Mapping[str, Sequence[float]] | None) -> dict[str, np.ndarray]:
    """The checked axes of a grid.

    >>> axes_of({"mu": [1, 2]})
    {'mu': array([1., 2.])}
    """
    axes = {name: _axis(name, values) for name, values in (over or {}).items()}
    if "mu" in axes and "epsilon" in axes:
        raise Refusal("give mu or epsilon, not both, got both as axes")
    return axes


def members_of(
    protocol, problem: Problem, plan: Plan, axes: Mapping[str, np.ndarray], delta: float
) -> tuple[Any, Problem, Members]:
    """The first member, calibrated, with its problem; and all of them stacked."""
    protocols, problems = [], []
    for values in product(*axes.values()):
        settings = _in_its_currency(protocol, dict(zip(axes, map(float, values), strict=True)), delta)
        own = _with_radius(problem, settings.pop("radius", None))
        protocols.append(calibrate(replace(protocol, **settings), own, plan, delta=delta))
        problems.append(own)
    members = Members(
        protocol=stacked([as_leaves(p) for p in protocols]),
        constraint=stacked([as_leaves(p.constraint) for p in problems]),
        noise_std=np.array([p.noise_std for p in protocols]),
        step_size=np.array([p.step_size * p.step_scale for p in protocols]),
        sensitivity=np.array([p.sensitivity(own, plan.size) for p, own in zip(protocols, problems, strict=True)]),
    )
    return protocols[0], problems[0], members


def stacked(trees: Sequence[Any]) -> Any:
    """Pytrees of one structure on a leading axis, as host arrays."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _in_its_currency(protocol: Any, settings: dict[str, float], delta: float) -> dict[str, float]:
    """A GDP target as the (ε, δ) target that it implies for protocols that ask for one; and the other way round."""
    by_records = hasattr(protocol, "calibrated")
    if by_records and "mu" in settings:
        if protocol.delta is not None:
            raise Refusal(f"delta must be None with an axis mu, which is converted at the run's, got {protocol.delta}")
        settings["epsilon"] = float(gdp.epsilon(settings.pop("mu"), delta))
    elif not by_records and "epsilon" in settings:
        settings["mu"] = float(gdp.mu(settings.pop("epsilon"), delta))
    return settings


def _with_radius(problem: Problem, radius: float | None) -> Problem:
    if radius is None:
        return problem
    if not isinstance(problem.constraint, Ball):
        raise Refusal("radius can be swept for a ball only, and the problem has none")
    declared = problem.own_lipschitz is not None or problem.own_smoothness is not None
    if declared and radius > problem.constraint.radius:
        raise Refusal(
            f"radius must be at most {problem.constraint.radius:g}, where lipschitz and smoothness were declared, "
            f"got {radius:g}"
        )
    ball = Ball(radius)
    if not ball.contains(problem.start):
        raise Refusal(f"start must lie in the constraint set, a ball of radius {radius:g}")
    return replace(problem, constraint=ball)


def _axis(name: str, values: Sequence[float]) -> np.ndarray:
    require_choice("swept setting", name, SWEPT)
    try:
        axis = np.atleast_1d(np.asarray(values, float))
    except (TypeError, ValueError):
        axis = np.zeros((0, 0))
    if axis.ndim != 1 or axis.size == 0:
        raise Refusal(f"{name} must be swept over a list of numbers, got {values!r}")
    for value in axis:
        require_positive(name, float(value), infinite=name in ("mu", "epsilon"))
    if np.unique(axis).size != axis.size:
        raise Refusal(f"{name} must be swept over distinct numbers, got {axis.tolist()}")
    return axis


def sweepable(protocol_class: type) -> tuple[str, ...]:
    """What may be swept for a protocol: privacy targets, each field that is a pytree leaf, and the ball's radius.

    >>> from fedprivjax import NoisySGD
    >>> sweepable(NoisySGD)
    ('mu', 'epsilon', 'noise_std', 'step_size', 'step_scale', 'clip', 'radius')
    """
    leaves = [field.name for field in fields(protocol_class) if field.metadata.get("pytree_node", True)]
    return tuple(dict.fromkeys(["mu", "epsilon", "noise_std", *leaves, "radius"]))
