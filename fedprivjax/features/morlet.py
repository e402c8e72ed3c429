r"""Morlet wavelets and the Gaussian window of a scattering transform, on a periodic grid; host, float64.

    ψ_{j,θ}(u) = a/(2πσ²)·(e^{iξ·p} − β)·e^{−(p² + a²q²)/(2σ²)}        σ = 0.8·2^j,  ξ = (3π/4)·2^{−j},  a = 4/angles
    φ(v)       = e^{−v²/(2τ²)}/(τ√(2π))  on each axis                   τ = 0.8·2^{scales−1}

p and q are the coordinates of u along the direction θ and across it, and β makes the wavelet's sum zero.

Source: Bruna & Mallat 2013, Invariant Scattering Convolution Networks, with the commonly used constants.
"""

from functools import lru_cache

import numpy as np

WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
FREQUENCY = 3 * np.pi / 4  # frequency of the finest wavelet, in radians per pixel
ELONGATION = 4.0  # divided by the number of angles: ratio of the envelope's widths along and across the wave
COPIES = 2  # number of neighbouring periods on each side that overlap a period


@lru_cache(maxsize=16)
def wavelets(height: int, width: int, scale: int, angles: int) -> np.ndarray:
    """Return the discrete Fourier transforms of the wavelets of one scale, real, shape [angles, height, width].

    >>> bank = wavelets(12, 12, 0, 8)
    >>> bank.shape, bool(np.abs(bank[:, 0, 0]).max() < 1e-12)
    ((8, 12, 12), True)
    """
    return np.stack([_wavelet(height, width, scale, np.pi * k / angles, ELONGATION / angles) for k in range(angles)])


def _wavelet(height: int, width: int, scale: int, angle: float, slant: float) -> np.ndarray:
    sigma, frequency = WIDTH * 2.0**scale, FREQUENCY * 2.0**-scale
    rows, columns = _periods(height)[:, None], _periods(width)[None, :]
    along = rows * np.cos(angle) + columns * np.sin(angle)
    across = columns * np.cos(angle) - rows * np.sin(angle)
    envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * np.pi * sigma**2)
    wave, still = (_folded(each, height, width) for each in (envelope * np.exp(1j * frequency * along), envelope))
    # the wavelet at −u is the conjugate of that at u, so its transform is real
    return np.fft.fft2(wave - still * (wave.sum() / still.sum())).real


@lru_cache(maxsize=64)
def smoothing(side: int, margin: int, scales: int, step: int) -> np.ndarray:
    """Return the matrix of smoothing and subsampling on one axis, shape [outputs, inputs].

    The input is a signal at every `step`-th pixel of a period of `side + 2·margin`. The output is its smoothed value at
    every 2^scales-th pixel of the `side`, which starts at `margin`.

    >>> smoothing(8, 4, 2, 1).shape, smoothing(8, 4, 2, 2).shape
    ((2, 16), (2, 8))
    """
    period, tau = side + 2 * margin, WIDTH * 2.0 ** (scales - 1)
    window = np.exp(-(_periods(period) ** 2) / (2 * tau**2)) / (tau * np.sqrt(2 * np.pi))
    window = window.reshape(-1, period).sum(axis=0)
    places = margin + np.arange(0, side, 2**scales)
    return step * window[(places[:, None] - np.arange(0, period, step)[None, :]) % period]


def _periods(side: int) -> np.ndarray:
    """Return coordinates over several periods, with the one that starts at 0 in the middle."""
    return np.arange(-COPIES * side, (COPIES + 1) * side)


def _folded(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the sum of several periods, as one period."""
    return values.reshape(2 * COPIES + 1, height, 2 * COPIES + 1, width).sum(axis=(0, 2))
