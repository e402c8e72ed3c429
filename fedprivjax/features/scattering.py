r"""The scattering transform: smoothed moduli of wavelet coefficients of an image, of first and second order.

    S = ( x∗φ,  |x∗ψ_λ|∗φ,  ||x∗ψ_λ|∗ψ_μ|∗φ ),  every 2^scales pixels;  λ, μ = (scale, angle), μ's scale above λ's

It is stable to small shifts and deformations of an image, and needs no training. Its Morlet wavelets and its Gaussian
window are computed on a periodic grid, on the host, in float64:

    ψ_{j,θ}(u) = a/(2πσ²)·(e^{iξ·p} − β)·e^{−(p² + a²q²)/(2σ²)}        σ = 0.8·2^j,  ξ = (3π/4)·2^{−j},  a = 4/angles
    φ(v)       = e^{−v²/(2τ²)}/(τ√(2π))  on each axis                   τ = 0.8·2^{scales−1}

p and q are the coordinates of u along the direction θ and across it, and β makes the wavelet's sum zero.

Source: Bruna & Mallat 2013, Invariant Scattering Convolution Networks, with the commonly used constants.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.features.maps import FeatureMap, require_picture

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


@dataclass(frozen=True)
class Scattering(FeatureMap):
    """Feature map of the scattering transform: local means of an image's absolute wavelet coefficients.

    Every channel of the image is transformed separately. The first output channel is the local mean of the image.
    Channels of first order are local means of the image's absolute Morlet wavelet coefficients. For second order,
    wavelets of larger scales are first applied to these absolute values.

    Let J be `scales` and L be `angles`. Each channel of the image gives 1 + J·L output channels up to first order, and
    L²·J·(J − 1)/2 of second order. The output has every 2^J-th pixel.

    Attributes:
        scales: number of scales J. Both sides of an image must be multiples of 2^J, and larger than it.
        angles: number of angles L in half a turn.
        order: largest order of the output channels, 1 or 2.

    Source: Bruna & Mallat 2013, Invariant Scattering Convolution Networks.

    >>> Scattering().shape((28, 28, 1))
    (7, 7, 81)
    """

    cached: ClassVar[bool] = True

    scales: int = 2
    angles: int = 8
    order: int = 2

    def __post_init__(self):
        require_at_least("scattering scales", self.scales, 1)
        require_at_least("scattering angles", self.angles, 1)
        require_at_least("scattering order", self.order, 1)
        if self.order > 2:
            raise Refusal(f"scattering order must be 1 or 2, got {self.order}")

    @property
    def paths(self) -> int:
        """Number of output channels for each channel of the image: 81 with the default settings."""
        pairs = self.scales * (self.scales - 1) // 2 if self.order == 2 else 0
        return 1 + self.scales * self.angles + pairs * self.angles**2

    def shape(self, shape):
        require_picture("scattering", shape)
        height, width, channels = shape
        block = 2**self.scales
        if height % block or width % block or min(height, width) <= block:
            wanted = f"multiples of 2^scales ({block}) and larger"
            raise Refusal(f"scattering must be of pictures with sides that are {wanted}, got {height}×{width}")
        return height // block, width // block, channels * self.paths

    def bound(self, shape, bound):
        return bound * _gain(self, *shape[:2])

    def __call__(self, examples):
        count, height, width, channels = examples.shape
        pictures = jnp.moveaxis(examples, 3, 1).reshape(-1, height, width)
        block = 2**self.scales
        padded = jnp.pad(pictures, ((0, 0), (block, block), (block, block)), mode="reflect")
        spectrum = jnp.fft.fft2(padded)[:, None]
        waves = [self._waves(spectrum, 0, scale) for scale in range(self.scales)]
        found = [self._smoothed(padded[:, None], height, width, 0)]
        found += [self._smoothed(wave, height, width, scale) for scale, wave in enumerate(waves)]
        if self.order == 2:
            for first, wave in enumerate(waves[:-1]):
                spectra = jnp.fft.fft2(wave)
                for second in range(first + 1, self.scales):
                    found.append(self._smoothed(self._waves(spectra, first, second), height, width, second))
        every = jnp.concatenate(found, axis=1)
        every = every.reshape(count, channels * self.paths, *every.shape[2:])
        return jnp.moveaxis(every, 1, 3)

    def _waves(self, spectra, known: int, scale: int):
        """Return `|x∗ψ|` of a scale at every 2^scale-th pixel, shape [pictures, waves·angles, …].

        `spectra` are the transforms of signals x at every 2^known-th pixel, shape [pictures, waves, …].
        """
        height, width = (side << known for side in spectra.shape[2:])
        bank = _aliased(wavelets(height, width, scale, self.angles), 1 << known)
        folds = 1 << (scale - known)
        products = spectra[:, :, None] * jnp.asarray(bank, jnp.float32)[None, None]
        waves = jnp.abs(jnp.fft.ifft2(_aliased(products, folds) / folds**2))
        return waves.reshape(len(spectra), -1, *waves.shape[3:])

    def _smoothed(self, waves, height: int, width: int, scale: int):
        down, across = (_window(self, side, scale).astype(np.float32) for side in (height, width))
        return jnp.einsum("iu,ncuv,jv->ncij", down, waves, across)


def _aliased(spectra, folds: int):
    """Return transforms summed over the frequencies that coincide on every `folds`-th pixel."""
    *front, height, width = spectra.shape
    return spectra.reshape(*front, folds, height // folds, folds, width // folds).sum(axis=(-4, -2))


def _window(settings: Scattering, side: int, scale: int) -> np.ndarray:
    return smoothing(side, 2**settings.scales, settings.scales, 2**scale)


@lru_cache(maxsize=64)
def _gain(settings: Scattering, height: int, width: int) -> float:
    """Return a bound on the ratio of the norms of features and image, from operator norms of the filters."""
    block, scales = 2**settings.scales, range(settings.scales)
    repeats = [np.bincount(np.pad(np.arange(side), block, mode="reflect")).max() for side in (height, width)]
    smooth = [float(np.prod([np.linalg.norm(_window(settings, s, j), 2) for s in (height, width)])) for j in scales]
    padded = height + 2 * block, width + 2 * block
    first = [_energy(settings, padded, 0, scale) for scale in scales]
    total = smooth[0] ** 2 + sum(smooth[scale] ** 2 * first[scale] for scale in scales)
    if settings.order == 2:
        pairs = [(one, two) for two in scales for one in range(two)]
        total += sum(smooth[two] ** 2 * first[one] * _energy(settings, padded, one, two) for one, two in pairs)
    return sqrt(float(np.prod(repeats)) * total)


def _energy(settings: Scattering, padded: tuple[int, int], known: int, scale: int) -> float:
    """Return the largest fraction of a real signal's energy in all waves of a scale, on the subsampled grids."""
    bank = _aliased(wavelets(*padded, scale, settings.angles), 1 << known)
    folds = 1 << (scale - known)
    weight = _aliased(bank**2, folds).sum(axis=0) / folds**2
    mirrored = np.roll(weight[::-1, ::-1], 1, axis=(0, 1))  # a real signal has equal energy at ω and −ω
    return float((weight + mirrored).max() / 2)
