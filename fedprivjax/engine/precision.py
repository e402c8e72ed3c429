"""Precision of matrix products and convolutions on accelerators. Noise is always computed in full precision."""

import jax

FLOAT32, TF32 = "float32", "tf32"
PRECISIONS = {FLOAT32: "float32", TF32: "tensorfloat32"}  # jax's names


def products(precision: str = FLOAT32):
    """Return a context in which products are traced with a precision, a key of `PRECISIONS`.

    With "tf32", an accelerator may round the factors of products to 10 bits of mantissa, which is faster. A CPU
    computes in float32 in both cases.
    """
    return jax.default_matmul_precision(PRECISIONS[precision])
