"""What runs other groups' released code as it is, beside the methods as they are published; no method needs any of it.

The code that Lowy & Razaviyayn released takes sums of messages where the paper takes means, clips messages instead of
records, and sets its noise by a rule whose claimed ε does not hold for the samples that it draws.
"""

from fedprivjax.protocols.released.local_sgd import ReleasedLocalSGD
from fedprivjax.protocols.released.minibatch_sgd import ReleasedMinibatchSGD

__all__ = ["ReleasedLocalSGD", "ReleasedMinibatchSGD"]
