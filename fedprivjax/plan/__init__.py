"""What is drawn before a run: who takes part in which round, and which records they use."""
