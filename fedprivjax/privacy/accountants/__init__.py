"""Accountants: ε from noise, one file per family of mechanisms, with dp-accounting as a second accountant."""
