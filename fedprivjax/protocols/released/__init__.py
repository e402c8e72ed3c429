"""Methods as in released code of other groups, where it differs from the published methods. No other method needs them.

The released code of Lowy & Razaviyayn sums messages instead of averaging them, clips messages instead of records, and
sets its noise by a rule whose claimed ε does not hold for its sampling.
"""

from fedprivjax.protocols.released.local_sgd import ReleasedLocalSGD
from fedprivjax.protocols.released.minibatch_sgd import ReleasedMinibatchSGD

__all__ = ["ReleasedLocalSGD", "ReleasedMinibatchSGD"]
