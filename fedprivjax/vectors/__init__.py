"""Reference vectors: small runs of every method with all inputs, noise, messages and iterates, to test other code."""

from fedprivjax.vectors.accountants import check_accountants, read_accountants, write_accountants
from fedprivjax.vectors.cases import CASES
from fedprivjax.vectors.files import FORMAT, check_vectors, read_arrays, write_vectors

__all__ = [
    "CASES",
    "FORMAT",
    "check_accountants",
    "check_vectors",
    "read_accountants",
    "read_arrays",
    "write_accountants",
    "write_vectors",
]
