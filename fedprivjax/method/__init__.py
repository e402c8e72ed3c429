"""Shared parts of all methods: the Protocol interface, rounds, private messages and records, server steps, settings."""
