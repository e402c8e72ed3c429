"""Shared parts of tables and figures: text, formatted numbers, colours, styles and panels."""
