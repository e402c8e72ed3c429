"""A method at the least noise that gives the ε on its plan, where its own calibration may be made for more messages."""

from dataclasses import replace

from fedprivjax.planner.bounds import Calibrated
from fedprivjax.planner.candidates import Draft
from fedprivjax.planner.setting import Setting
from fedprivjax.privacy.calibration import settle
from fedprivjax.privacy.target import PLAN


def calibrated(draft: Draft, setting: Setting) -> Calibrated:
    """A draft with the least noise that is known to give the ε on its plan.

    Raises:
        Refusal: what the protocol itself refuses, or a target that no noise reaches.

    >>> from fedprivjax.planner.candidates import METHODS
    >>> setting = Setting(machines=10, per_round=5, samples=20, dimension=5, epsilon=1.0)
    >>> (draft,) = METHODS["local_sgd"][0].drafts(setting)
    >>> round(calibrated(draft, setting).event.epsilon(setting.delta), 4)
    1.0
    """
    problem, plan = draft.problem, draft.plan
    protocol, event = settle(replace(draft.protocol, calibrate_to=PLAN), problem, plan, setting.target)
    return Calibrated(setting, protocol, problem, plan, event)
