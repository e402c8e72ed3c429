"""DP-μ²-FL with noise cancellation in PyTorch with gradients in closed form: the participants' increments are summed by
one matrix product a round, every machine's noise is drawn and kept. Same call and same law as `numpy_loop.py`."""

import numpy as np


def run(
    features, labels, participants, samples, relative, *, noise_std, step_size, radius, machines, classes, seed
) -> np.ndarray:
    """x_T, float32 [classes, features].

    Args:
        features, labels: [examples, features] and [examples].
        participants, samples, relative: each round's machines, their examples, and the relative standard deviation of
            their noise, [rounds, per_round] each.
    """
    import torch  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(seed)
    rounds, per_round = participants.shape
    shape = classes, features.shape[1]
    pool = torch.from_numpy(np.array(features, np.float32))
    hots = torch.eye(classes)[torch.from_numpy(np.array(labels, np.int64))]
    who, which = (torch.from_numpy(np.array(indices, np.int64)) for indices in (participants, samples))
    scales = torch.from_numpy(np.array(noise_std * relative, np.float32))[:, :, None]
    x, x_previous, w, q = (torch.zeros(shape) for _ in range(4))
    last_noise = torch.zeros(machines, classes * features.shape[1])
    for t in range(1, rounds + 1):
        z, hot = pool[which[t - 1]], hots[which[t - 1]]
        residual = t * (torch.softmax(z @ x.T, 1) - hot) - (t - 1) * (torch.softmax(z @ x_previous.T, 1) - hot)
        q.addmm_(residual.T, z, alpha=1 / per_round)
        if noise_std:
            noise = torch.randn(per_round, last_noise.shape[1], generator=generator).mul_(scales[t - 1])
            q += (noise - last_noise[who[t - 1]]).mean(0).view(shape)
            last_noise[who[t - 1]] = noise
        w.sub_(q, alpha=step_size)
        norm = float(w.norm())
        if norm > radius:
            w *= radius / norm
        x_previous, x = x, x + 2 / (t + 2) * (w - x)
    return x_previous.numpy()
