"""The optimisation problem: objective, data, constraint set and constants."""
