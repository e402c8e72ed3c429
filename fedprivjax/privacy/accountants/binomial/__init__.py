"""Accounting of sums of bits with binomial noise in the shuffle model: exact, or with the paper's constants.

Computed on the host in float64, with NumPy and SciPy only.

Source: Cheu, Joseph, Mao & Peng, ICLR 2022.
"""
