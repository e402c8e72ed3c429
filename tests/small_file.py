"""A small federation as an experiment file has it, for tests of the rest of one."""

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
