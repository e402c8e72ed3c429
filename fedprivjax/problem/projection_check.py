"""Numerical check of custom constraint sets: `project` must project onto a convex set of the declared sizes.

Noise and steps follow from the declared `radius` and `diameter`. A custom set is therefore tested on the host before a
run, with the sizes of that run. Near and far points are projected. Norms, distances and ratios of distances are then
maximised, to find a single bad direction or jump. The supporting planes of a convex set give pairs of points that a set
which only scales points down would move apart.
"""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.checks import require_projection
from fedprivjax.problem.constraints import BUILT_IN, ConstraintSet, flat
from fedprivjax.problem.program import contents, program_of, typed_jit

TOLERANCE = 1e-4  # relative to the set's size
ROUNDING = 32 * float(np.finfo(np.float32).eps)  # relative to the norm of the projected point
DISTANCES = (0.01, 0.3, 1.0, 3.0, 30.0, 1e3, 1e6)  # distances of points from the start, relative to the set's size
FAR = 1e3  # distance at which a projection is almost the extreme point of a direction
ASCENTS, BISECTIONS = 4, 12
POINTS_FLOATS = 2**22  # largest number of coordinates of all points together
MOST_KNOWN = 4096

_passed: set[Hashable] = set()
_programs: dict[Hashable, Hashable] = {}


def require_true_projection(constraint: ConstraintSet, start: Any) -> None:
    """Raise Refusal if a custom set's `project` is not a projection onto a convex set of the declared sizes.

    The package's own sets are exempt. A set that passed is not tested again with the same numbers and start.

    Args:
        start: first point of the run, a pytree of parameters that must be in the set.
    """
    if type(constraint) in BUILT_IN:
        return
    require_projection(constraint, start)
    sizes = _declared(constraint, "radius"), _declared(constraint, "diameter")
    case = _case(constraint, start), _program(constraint, start), sizes
    if case in _passed:
        return
    _Trial(constraint, start, *sizes).run()
    if len(_passed) >= MOST_KNOWN:
        _passed.clear()
    _passed.add(case)


class _Trial:
    """Test of one set. Every method raises Refusal at the first violation."""

    def __init__(self, constraint: ConstraintSet, start: Any, radius: float, diameter: float):
        self.constraint, self.start, self.radius, self.diameter = constraint, start, radius, diameter
        self.name = f"{type(constraint).__name__}.project"
        self.centre = flat(start)
        known = [size for size in (diameter, radius) if np.isfinite(size)]
        self.size = float(np.clip(known[0] if known else max(1.0, np.linalg.norm(self.centre)), 1e-10, 1e10))

    def run(self) -> None:
        first, second = self._pairs()
        ends = self._projected(first), self._projected(second)
        self._starts_inside(ends[0][0])
        self._inside(first, ends[0])
        self._inside(second, ends[1])
        longest = ends[0]
        for _ in range(ASCENTS):
            point = self._far(longest)
            longest = self._projected(point)
            self._inside(point, longest)
            ahead, behind = self._far(ends[0] - ends[1]), self._far(ends[1] - ends[0])
            ends = self._projected(ahead), self._projected(behind)
            self._apart(ahead, *ends)
        self._no_jump(first, second)
        self._no_jump(first, np.roll(first, 1, axis=0))
        climbed = self._climbed(first), self._climbed(second)
        for points, images in climbed:
            self._inside(points, images)
        self._apart(climbed[0][0], climbed[0][1], climbed[1][1])
        for points in (first, second, climbed[0][0], climbed[1][0]):
            beyond, nearest = self._beyond(points, np.vstack([longest, *ends, climbed[0][1], climbed[1][1]]))
            self._no_jump(beyond, points)
            self._no_jump(beyond, nearest)

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and points on opposite sides of it in random directions, each of shape [points, d]."""
        rng, dimension = np.random.default_rng(0), self.centre.size
        count = int(np.clip(POINTS_FLOATS // (2 * len(DISTANCES) * dimension), 2, 8))
        directions = rng.normal(size=(len(DISTANCES), count, dimension))
        directions[:, 0] = np.sign(directions[:, 0])
        directions[:, 1] = np.eye(1, dimension, int(rng.integers(dimension)))
        steps = self.size * (np.array(DISTANCES)[:, None, None] * _unit(directions)).reshape(-1, dimension)
        steps = np.vstack([np.zeros(dimension), steps])
        return self.centre + steps, self.centre - steps

    def _far(self, directions: np.ndarray) -> np.ndarray:
        return self.centre + FAR * self.size * _unit(directions)

    def _projected(self, points: np.ndarray) -> np.ndarray:
        images = self._of(_projections, points)
        if not np.isfinite(images).all():
            raise Refusal(f"{self.name} must return finite parameters, got an infinite or NaN entry")
        return images

    def _of(self, function: Callable, points: np.ndarray) -> np.ndarray:
        return np.asarray(function(self.constraint, self.start, jnp.asarray(points, jnp.float32)), float)

    def _slack(self, points: np.ndarray) -> np.ndarray:
        """Return the largest rounding error of the norm of each point's image, shape [points]."""
        return TOLERANCE * self.size + ROUNDING * np.linalg.norm(points, axis=1)

    def _starts_inside(self, image: np.ndarray) -> None:
        moved = np.linalg.norm(image - self.centre)
        if moved > self._slack(self.centre[None])[0]:
            got = f"got one moved by {moved:.4g}. Choose a start that lies in the set"
            raise Refusal(f"{self.name} must leave the start in place, {got}")

    def _inside(self, points: np.ndarray, images: np.ndarray) -> None:
        """Check that images have norm at most `radius` and do not move if they are projected again."""
        slack, norms = self._slack(points), np.linalg.norm(images, axis=1)
        over = norms > self.radius + slack
        if over.any():
            got = f"got a point of norm {norms[over].max():.4g}. Declare the radius of the set that project maps to"
            raise Refusal(f"{self.name} must return points of norm at most its radius ({self.radius:g}), {got}")
        moved = np.linalg.norm(self._projected(images) - images, axis=1)
        if (moved > slack).any():
            got = f"got one moved by {moved[moved > slack].max():.4g}. Return the nearest point of a convex set"
            raise Refusal(f"{self.name} must leave points of the set in place, {got}")

    def _apart(self, points: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        """Check that pairs of images are at most `diameter` apart."""
        distances = np.linalg.norm(first - second, axis=1)
        over = distances > self.diameter + self._slack(points)
        if over.any():
            got = f"got {distances[over].max():.4g}. Declare the diameter of the set that project maps to"
            raise Refusal(f"{self.name} must return points at most its diameter ({self.diameter:g}) apart, {got}")

    def _climbed(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return points moved along the gradient of their image's distance from the start, and their images.

        A set that scales points down may have long images in few directions, which far points do not reach.
        """
        images = self._projected(points)
        for _ in range(ASCENTS):
            try:
                slopes = self._of(_slopes, points)
            except Exception:  # e.g. a loop without a derivative
                return points, images
            steps = np.linalg.norm(points - self.centre, axis=1, keepdims=True) * _unit(np.nan_to_num(slopes))
            moved = self._projected(points + steps)
            longer = np.linalg.norm(moved - self.centre, axis=1) > np.linalg.norm(images - self.centre, axis=1)
            points, images = (
                np.where(longer[:, None], new, old) for new, old in ((points + steps, points), (moved, images))
            )
        return points, images

    def _beyond(self, points: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the set's point farthest beyond each point's supporting plane, and the nearest point on the segment.

        The plane contains the point's image and is normal to the segment from the image to the point. A convex set is
        behind this plane if the image is the nearest point.

        Args:
            others: points of the set, from which one is chosen per plane.
        """
        images = self._projected(points)
        ways = points - images
        normals, others = _unit(ways), np.vstack([others, images])
        beyond = others[np.argmax(normals @ others.T, axis=1)]
        along = np.sum((beyond - images) * normals, axis=1, keepdims=True)
        nearest = images + np.clip(along, 0.0, np.linalg.norm(ways, axis=1, keepdims=True)) * normals
        return beyond, nearest

    def _no_jump(self, first: np.ndarray, second: np.ndarray) -> None:
        """Check that the projection moves no pair of points apart, nor pairs between them, found by bisection."""
        images = self._projected(first), self._projected(second)
        self._apart(first, *images)
        for _ in range(BISECTIONS):
            before, after = np.linalg.norm(first - second, axis=1), np.linalg.norm(images[0] - images[1], axis=1)
            wider = after > before + self._slack(first) + self._slack(second)
            if wider.any():
                got = f"got {after[wider][0]:.4g} apart from {before[wider][0]:.4g}"
                raise Refusal(
                    f"{self.name} must not move points apart, {got}. Return the nearest point of a convex set"
                )
            middle = (first + second) / 2
            image = self._projected(middle)
            left = np.linalg.norm(images[0] - image, axis=1) >= np.linalg.norm(images[1] - image, axis=1)
            first, second = np.where(left[:, None], [first, middle], [middle, second])
            images = np.where(left[:, None], images[0], image), np.where(left[:, None], image, images[1])


@typed_jit
def _projections(constraint, start, points):
    """Return projections of flat points, [points, d]. The set's numbers are traced, as in a run."""
    unravel = ravel_pytree(start)[1]
    return jax.vmap(lambda point: ravel_pytree(constraint.project(unravel(point)))[0])(points)


@typed_jit
def _slopes(constraint, start, points):
    """Return gradients, at flat points [points, d], of half the squared distance of their images from the start."""
    centre, unravel = ravel_pytree(start)

    def distance(point):
        return jnp.sum((ravel_pytree(constraint.project(unravel(point)))[0] - centre) ** 2) / 2

    return jax.vmap(jax.grad(distance))(points)


def _unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1.0)


def _declared(constraint: ConstraintSet, name: str) -> float:
    value = getattr(constraint, name)
    number = float(value) if np.ndim(value) == 0 and isinstance(value, int | float | np.generic | jax.Array) else np.nan
    if not number > 0:
        raise Refusal(f"{name} of {type(constraint).__name__} must be a positive number, got {value!r}")
    return number


def _program(constraint: ConstraintSet, start: Any) -> Hashable:
    """Return the program of `project`, including the globals that it reads.

    If it was another program before, for a set and start of the same structure, all compiled programs are dropped.
    Otherwise JAX would run the old program, to which the present sizes do not apply.
    """
    program = program_of(lambda constraint, params: constraint.project(params), constraint, start)
    leaves, tree = jax.tree.flatten((constraint, start))
    structure = tree, tuple((np.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
    if _programs.setdefault(structure, program) != program:
        jax.clear_caches()
        _programs[structure] = program
    return program


def _case(constraint: ConstraintSet, start: Any) -> Hashable:
    """Return the numbers and static fields of a set, and a hash of the start."""
    numbers, fields = jax.tree.flatten(constraint)
    points, structure = jax.tree.flatten(start)
    return fields, contents(numbers), structure, hash(contents(points))
