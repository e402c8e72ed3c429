"""One run: made ready, simulated as one scan, and seen as an adversary sees it."""
