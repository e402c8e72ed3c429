"""Refusals of bad input: one clear line each, before anything is compiled."""
