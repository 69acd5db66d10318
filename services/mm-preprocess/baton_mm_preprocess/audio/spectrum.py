"""Log-mel spectrograms in numpy, equal to those of transformers' `WhisperFeatureExtractor`.

Radford et al. 2022, arXiv:2212.04356; the mel scale and its filters are those of Slaney's Auditory
Toolbox (1998).
"""

from __future__ import annotations

import math
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]
Features = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_FLOOR = 1e-10
_DYNAMIC = 8.0
"""Dynamic range below the loudest value, in decades."""
_BLOCK = 2048
"""Number of frames per FFT batch."""
_LINEAR_HZ, _LINEAR_MELS = 1000.0, 15.0
"""Frequency in Hz at which Slaney's scale changes from linear to logarithmic."""
_LOG_STEP = math.log(6.4) / 27.0


class LogMel(msgspec.Struct, frozen=True):
    """Short-time Fourier transform, mel filters, logarithm.

    Frames are windows of `n_fft` samples (Hann), one every `hop`, the first around sample 0; both
    ends are mirrored.
    """

    num_mels: int = 80
    n_fft: int = 400
    hop: int = 160
    rate: int = 16_000
    """Samples per second."""
    high: float = 8000.0
    """Upper end of the last filter in Hz."""
    loudest: float | None = None
    """Logarithm of the assumed loudest value; None for that of the sound."""

    def __call__(self, samples: Samples) -> Features:
        """float32 [samples] to [num_mels, samples // hop]; requires at least `n_fft` samples."""
        mirrored = np.pad(samples, self.n_fft // 2, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(mirrored, self.n_fft)[:: self.hop]
        logs = np.empty((len(samples) // self.hop, self.num_mels), np.float32)
        for first in range(0, len(logs), _BLOCK):
            block = slice(first, min(first + _BLOCK, len(logs)))
            logs[block] = np.log10(np.maximum(self._powers(windows[block]), _FLOOR))
        loudest = logs.max() if self.loudest is None else np.float32(self.loudest)
        np.maximum(logs, loudest - np.float32(_DYNAMIC), out=logs)
        logs += np.float32(4.0)
        logs /= np.float32(4.0)
        return np.ascontiguousarray(logs.T)

    def _powers(self, windows: Samples) -> Doubles:
        """[frames, n_fft] to [frames, num_mels]."""
        shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.n_fft) / self.n_fft)
        powers: Doubles = np.abs(np.fft.rfft(windows * shape)) ** 2 @ mel_filters(self)
        return powers


@cache
def mel_filters(spectrum: LogMel) -> Doubles:
    """Triangular filters of equal area, equally spaced in mel: [n_fft // 2 + 1, num_mels]."""
    bins = np.linspace(0.0, spectrum.rate / 2, spectrum.n_fft // 2 + 1)
    corners = _hertz(np.linspace(0.0, _mels(spectrum.high), spectrum.num_mels + 2))
    rise = (bins[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    fall = (corners[2:] - bins[:, None]) / (corners[2:] - corners[1:-1])
    filters: Doubles = np.maximum(0.0, np.minimum(rise, fall)) * 2.0 / (corners[2:] - corners[:-2])
    return filters


def _mels(hertz: float) -> float:
    if hertz < _LINEAR_HZ:
        return hertz * _LINEAR_MELS / _LINEAR_HZ
    return _LINEAR_MELS + math.log(hertz / _LINEAR_HZ) / _LOG_STEP


def _hertz(mels: Doubles) -> Doubles:
    linear = mels * _LINEAR_HZ / _LINEAR_MELS
    above = _LINEAR_HZ * np.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    hertz: Doubles = np.where(mels < _LINEAR_MELS, linear, above)
    return hertz
