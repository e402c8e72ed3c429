"""Run plans, sampled before a run: the participation schedule, and the records that each message uses."""
