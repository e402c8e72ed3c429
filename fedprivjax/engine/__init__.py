"""One run: preparation, simulation as one scan, metrics, and the adversary's transcript."""
