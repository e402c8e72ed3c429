"""Per-machine privacy in an experiment file."""

import numpy as np
import pytest

from fedprivjax.experiment import parse
from fedprivjax.experiment.jobs import jobs

PROFILE = [1.0, 4.0, 2.0, 0.5]


def raw(name, axis, **settings):
    data = {"dataset": "logistic", "options": {"examples": 48, "features": 3}, "radius": 1.0}
    data["partition"] = {"kind": "iid"}
    return {
        "title": "profiles",
        "problem": data,
        "participation": {"kind": "full", "machines": 4, "rounds": 12},
        "protocol": [{"name": name, "clip": 1.0, **settings}],
        "sweep": {axis: [1.0, 2.0], "seeds": 1},
    }


@pytest.mark.parametrize(
    ("name", "axis", "settings"),
    [
        ("tree_momentum", "mu", {"trust": "none", "alpha": 0.5, "batch": 2}),
        ("noisy_minibatch_sgd", "epsilon", {"sampler": "full", "step_size": 0.1}),
    ],
)
def test_a_file_gives_every_machine_its_own_privacy(name, axis, settings):
    (job,) = jobs(parse(raw(name, axis, relative_privacy=PROFILE, **settings)))
    for level, events in zip((1.0, 2.0), job.prepare().configurations.events, strict=True):
        each = events[0].guarantee(1e-5).per_machine
        np.testing.assert_allclose(each, level * np.array(PROFILE) / 4, rtol=1e-6)
