"""Leaderboards: private methods in comparable settings, as rows of finished results."""
