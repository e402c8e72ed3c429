"""What is minimised, on which data, over which set."""
