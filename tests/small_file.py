"""Sections of a small federation in an experiment file, for tests of the other sections, and a small experiment."""

FEDERATION = """
[problem]
dataset = "logistic"
options = { examples = 60, features = 3 }
radius = 5.0

[participation]
machines = 6
per_round = 3
rounds = 8
"""

TITLED = """
title = "small"
[problem]
dataset = "least_squares"
options = { examples = 60, features = 3 }
radius = 2.0
[participation]
machines = 6
per_round = 3
rounds = 4
"""

EXPERIMENT = (
    TITLED
    + """
[[protocol]]
name = "dp_mu2"
label = "ours"
[sweep]
seeds = 2
"""
)  # [sweep] is its last section, for a test to add its values
