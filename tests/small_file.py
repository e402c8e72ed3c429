"""Sections of a small federation in an experiment file, for tests of the other sections."""

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
