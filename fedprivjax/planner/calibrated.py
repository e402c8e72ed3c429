"""Calibration of a draft to its run plan. A protocol's own calibration may be for more messages."""

from dataclasses import replace

from fedprivjax.method.planning.bounds import PlannedRun
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft
from fedprivjax.privacy.calibration import calibrate_and_check
from fedprivjax.privacy.target import PLAN


def calibrated(draft: Draft, setting: Setting) -> PlannedRun:
    """Return the draft with the least noise that is known to meet the target ε on its run plan.

    Raises:
        Refusal: if the protocol's settings are invalid, or no noise meets the target.

    >>> from fedprivjax import LocalSGD
    >>> setting = Setting(machines=10, per_round=5, samples=20, dimension=5, epsilon=1.0)
    >>> (draft,) = LocalSGD.uses()[0].drafts(setting)
    >>> round(calibrated(draft, setting).event.epsilon(setting.delta), 4)
    1.0
    """
    problem, plan = draft.problem, draft.plan
    protocol, event = calibrate_and_check(replace(draft.protocol, calibrate_to=PLAN), problem, plan, setting.target)
    return PlannedRun(setting, protocol, problem, plan, event)
