"""Reference runs of every method, by method and case."""

from fedprivjax.plan.participation import Dropouts
from fedprivjax.vectors.settings import FULL, PARTIAL, Case, both

NUMBERS = {"noise_std": 0.4, "step_size": 0.1}
RANDOM_SIZE = Dropouts(PARTIAL, 0.3)
INCREMENTS = {"noise_std": 0.5, "step_size": 0.1, "clip": 0.6}


def dp_mu2() -> dict[str, Case]:
    """Return the cases of DP-μ²-FL."""
    trusted = {**INCREMENTS, "noise_std": 0.3, "trust": "server"}
    return both(
        {
            "partial": Case(INCREMENTS),
            "full": Case(INCREMENTS, FULL),
            "gap": Case({**INCREMENTS, "noise_schedule": "gap"}),
            "correlated": Case({**INCREMENTS, "noise_schedule": "toeplitz"}),
            "fresh-noise": Case({**INCREMENTS, "cancel": False}),
            "dropouts": Case(INCREMENTS, RANDOM_SIZE),
            "batch": Case({**INCREMENTS, "batch": 2}),
            "no-clip": Case({"noise_std": 0.5, "step_size": 0.1}),
            "server-partial": Case(trusted),
            "server-full": Case({**trusted, "step_size": 0.2}, FULL),  # reaches the boundary of the ball
        },
        "partial",
        "full",
    )


CASES = {"dp_mu2": dp_mu2}
