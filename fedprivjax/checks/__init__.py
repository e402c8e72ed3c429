"""Input validation: invalid input raises `Refusal` with a message of one line, before anything is compiled."""
