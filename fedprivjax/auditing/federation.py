"""A small federation for an audit: few machines with few records, one of which is a canary.

With the linear loss, a record's gradient is its label times its features at every point. All labels are 0 except the
canary's, which is negative in one world and positive in the other. The features lie along one direction, an axis or a
dense vector. Along that direction a view is noise plus the canary, orthogonal to it noise only.

With the quadratic loss, a gradient also grows with the point at which it is computed. Drift of local steps and
differences of gradients then matter. The other records pull along the canary's direction, which causes drift. Clipped
gradients are the same as with the linear loss.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedprivjax.auditing.canaries import AXES, CanaryLoss, canary_direction, in_two_arrays
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.plan.participation import Participation
from fedprivjax.plan.samplers import LocalWork
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.build import linear_problem
from fedprivjax.problem.constraints import Ball
from fedprivjax.problem.models import CLIPPINGS, Clipping
from fedprivjax.problem.problem import Problem

RADIUS = 1e3  # radius of the constraint set; steps are so short that no run comes near its boundary
SMOOTHNESS = 1e-9  # declared instead of 0, by which some default steps divide
EDGE = 1e-2 * RADIUS  # largest distance of an iterate from the start
LINEAR, QUADRATIC = "linear", "quadratic"
LENGTHS = {LINEAR: 100.0, QUADRATIC: 1e6}  # ratio of the canary's gradient norm to the clip, by loss
WITHIN = 0.95  # ratio of an unclipped canary's norm to the clip
PULL = 0.5  # ratio of the other records' gradient norms to the clip, with the quadratic loss


@dataclass(frozen=True)
class Federation:
    """A small federation for an audit: few machines with few records each, and few parameters.

    One record is the canary. It differs between the two neighbouring datasets of the audit.

    Attributes:
        participation: participation scheme.
        rounds: number of rounds.
        records: number of records per machine.
        dimension: number of parameters.
        canary: norm of the canary's gradient before clipping, divided by the clip. None is 100, or 10⁶ with the
            quadratic loss. For a method without a clip, the gradient has norm 1, and the Lipschitz constant is 1.
        order: order in which a machine uses its records, for methods that use one record per message. "stored" is the
            order of the data. `plan.ORDERS` lists the other orders.
        loss: "linear" or "quadratic". The quadratic loss can detect errors that the linear loss does not detect.
        unclipped: True to scale down the canary's gradient on one of the two datasets, such that this gradient is not
            clipped. If messages show whether a gradient was clipped, `audit` ignores this setting and chooses the
            value.
        dense: True if all coordinates of the canary's gradient are nonzero, False if only one coordinate is nonzero.
            None takes the gradient that the adversary detects better.
        leaves: number of arrays into which the parameters are divided, 1 or 2. With 2, the audit can detect that a
            method clips each array separately instead of the whole gradient. None is 2 if the method runs with two
            arrays, otherwise 1.
        clipping: code that clips gradients. "auto" is the code for linear predictors. The code for networks is "ghost"
            (ghost clipping) or "rows" (clipping of every record's gradient).
    """

    participation: Participation
    rounds: int
    records: int
    dimension: int = 16
    canary: float | None = None
    order: str = "stored"
    loss: str = LINEAR
    unclipped: bool = False
    dense: bool | None = None
    leaves: int | None = None
    clipping: Clipping = "auto"

    def __post_init__(self) -> None:
        require_choice("loss", self.loss, LENGTHS)
        if self.leaves not in (None, 1, 2):
            raise Refusal(f"leaves must be 1, 2 or None, got {self.leaves!r}")
        require_choice("clipping", self.clipping, CLIPPINGS)
        if self.leaves == 1 and self.clipping != "auto":
            raise Refusal(f"leaves must be 2 or None with clipping {self.clipping!r}, got 1. Leave it out")
        for name, least in (("rounds", 1), ("records", 1), ("dimension", AXES)):
            require_at_least(name, getattr(self, name), least)

    def problem(self, clip: Any, split: bool, canary: Any, label: float) -> Problem:
        """Return the optimisation problem on one of the two neighbouring datasets of the audit.

        The two datasets differ in the label of the canary. `dense` = None counts as False, and `leaves` = None counts
        as 1, or as 2 if `clipping` is not "auto".

        Args:
            clip: clip of gradients, or None for a method without a clip.
            split: True if each machine has its own records, False if all machines take records from a shared pool.
            canary: index of the canary among all records. If the guarantee protects whole machines: indices of all
                records of the canary's machine.
            label: the canary's label on this dataset, or 0 if the canary is absent.
        """
        machines = self.participation.machines
        rows = machines * self.records
        length = LENGTHS[self.loss] if self.canary is None else self.canary
        size = 1.0 if clip is None else length * float(np.max(clip))
        features = np.tile(size * canary_direction(self.dimension, dense=bool(self.dense)), (rows, 1))
        labels = np.full(rows, 0.0 if self.loss == LINEAR else PULL / length, np.float32)
        labels[canary] = label
        table = np.arange(rows).reshape(machines, self.records) if split else None
        bound = 1.0 if clip is None else None
        loss = CanaryLoss(self._curvature(clip, size))
        problem = linear_problem(
            features, labels, loss, feature_bound=bound, constraint=Ball(RADIUS), partition_table=table
        )
        problem = replace(problem, own_smoothness=max(SMOOTHNESS, loss.smoothness(size)))
        two = self.leaves == 2 or self.clipping != "auto"
        return in_two_arrays(problem, loss, self.clipping) if two else problem

    def positive_label(self, protocol: Any) -> float:
        """Return the canary's positive label: its label on one of the two neighbouring datasets of the audit.

        The two datasets differ in the label of one worst-case record, the canary. On the first dataset, the label is
        −1, or 0 for an absent canary. On the second, it is the positive number that this method returns. The canary's
        gradient is proportional to the label.

        The result is 1 for a method without a clip, or if the gradient for the label 1 is shorter than twice the clip.
        Otherwise it is 1/2, or with `unclipped` so small that the gradient is not clipped.

        Args:
            protocol: protocol that is audited.
        """
        length = LENGTHS[self.loss] if self.canary is None else self.canary
        if privacy_of(protocol).gradient_clip is None or length < 2:
            return 1.0
        return WITHIN / (length * self._steps(protocol)) if self.unclipped else 0.5

    def shorter(self, protocol: Any) -> "Federation":
        """Return a copy of the federation whose canary has a gradient of norm clip/(local steps of a round).

        The canary is the worst-case record of the attack. Its gradients in all local steps of a round then add up to a
        vector whose norm is the clip.
        """
        return replace(self, canary=1 / self._steps(protocol))

    def _steps(self, protocol: Any) -> int:
        """Return the largest number of local steps in a round, 1 without local steps."""
        work = protocol.minibatches
        return work.most_steps(np.array([self.records])) if isinstance(work, LocalWork) else 1

    def _curvature(self, clip: Any, size: float) -> float:
        """Return the loss's curvature for features of norm `size`, such that slopes stay positive in all runs."""
        if self.loss == LINEAR:
            return 0.0
        if clip is None:
            raise Refusal(f"loss must be {LINEAR!r} for a protocol without a clip, got {self.loss!r}. Set clip")
        return 1 / (4 * EDGE * size)

    def taking_part(self, problem: Problem) -> Participation:
        """Return the participation scheme of the audit's runs. Here it is the field `participation`.

        A subclass may return a scheme that depends on the data. Such participation leaks data, and the audit can detect
        it.

        Args:
            problem: one of the two neighbouring datasets of the audit.
        """
        return self.participation
