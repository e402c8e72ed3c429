"""Reference vectors: small runs of every method with all inputs, noise, messages and iterates, to test other code."""

from fedprivjax.vectors.cases import CASES
from fedprivjax.vectors.files import check_vectors, read_arrays, write_vectors
from fedprivjax.vectors.header import FORMAT

__all__ = ["CASES", "FORMAT", "check_vectors", "read_arrays", "write_vectors"]
