"""The scattering transform from its definition, by direct convolution in NumPy: every sum written out."""

import numpy as np

COPIES = range(-3, 4)  # periods that reach into one


def morlet(height, width, scale, angle, angles):
    """One wavelet on a periodic grid, complex [height, width]."""
    sigma, xi, slant = 0.8 * 2**scale, 3 * np.pi / 4 / 2**scale, 4 / angles
    wave, still = np.zeros((height, width), complex), np.zeros((height, width))
    for down in COPIES:
        for right in COPIES:
            y, x = np.ogrid[down * height : (down + 1) * height, right * width : (right + 1) * width]
            along, across = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
            size = slant / (2 * np.pi * sigma**2) * np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            wave += size * np.exp(1j * xi * along)
            still += size
    return wave - wave.sum() / still.sum() * still


def gaussian(height, width, scales):
    """The window on a periodic grid, [height, width]."""
    tau = 0.8 * 2 ** (scales - 1)
    rows, columns = (
        sum(np.exp(-((np.arange(side) + copy * side) ** 2) / (2 * tau**2)) for copy in COPIES)
        for side in (height, width)
    )
    return np.outer(rows, columns) / (2 * np.pi * tau**2)


def convolved(signal, kernel):
    """Circular convolution."""
    total = np.zeros(signal.shape, complex)
    for place in np.ndindex(*signal.shape):
        total += signal[place] * np.roll(kernel, place, axis=(0, 1))
    return total


def scattering(picture, scales, angles):
    """[paths, rows, columns] of one picture [height, width]; paths in the order of the definition."""
    block = 2**scales
    padded = np.pad(picture, block, mode="reflect")
    window = gaussian(*padded.shape, scales)
    bank = {(j, k): morlet(*padded.shape, j, np.pi * k / angles, angles) for j in range(scales) for k in range(angles)}

    def smoothed(wave, scale):
        step = 2**scale
        place, count = block // step, [side // block for side in picture.shape]
        rows, columns = (slice(place, place + block // step * n, block // step) for n in count)
        return convolved(wave, step**2 * window[::step, ::step]).real[rows, columns]

    first = {key: np.abs(convolved(padded, kernel))[:: 2 ** key[0], :: 2 ** key[0]] for key, kernel in bank.items()}
    paths = [smoothed(padded, 0), *(smoothed(wave, scale) for (scale, _), wave in first.items())]
    for low in range(scales):
        for high in range(low + 1, scales):
            for wave in (first[low, k] for k in range(angles)):
                for angle in range(angles):
                    kernel, step = 4**low * bank[high, angle][:: 2**low, :: 2**low], 2 ** (high - low)
                    paths.append(smoothed(np.abs(convolved(wave, kernel))[::step, ::step], high))
    return np.stack(paths)
