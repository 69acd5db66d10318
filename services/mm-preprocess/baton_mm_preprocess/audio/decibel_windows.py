"""Spectrograms in decibels, split into windows of patches."""

from __future__ import annotations

import msgspec
import numpy as np

from baton_mm_preprocess.audio.conformer_spectra import htk_filters
from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Doubles, Features, Samples

_FLOOR = 1e-10
_DYNAMIC = 120.0
"""Dynamic range below the loudest value, in decibels."""
_BLOCK = 4096
"""Number of frames per FFT batch."""
_EPS = 1e-7


class DecibelWindows(msgspec.Struct, frozen=True, tag="decibel_windows"):
    """Dasheng's features (arXiv:2406.06992): powers by HTK's mel filters in decibels. `patch`
    frames form a state; windows of `window_frames` are padded with zeros. One embedding per `stack`
    states.

    See `spec.PatchStem` of the worker for the relation of hops and frames.
    """

    bins: int = 64
    rate: int = 16_000
    hop: int = 160
    n_fft: int = 512
    length: int = 512
    """Samples of a window of the transform."""
    low: float = 0.0
    high: float = 8000.0
    patch: int = 4
    window_frames: int = 1008
    stack: int = 5
    min_samples: int = 3200
    """Shorter sounds are padded with silence."""
    normalised: bool = False
    """Whether samples are normalized to mean 0 and variance 1."""

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]."""
        samples = np.pad(samples, (0, max(0, self.min_samples - len(samples))))
        if self.normalised:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + np.float32(_EPS))
        hops = len(samples) // self.hop
        states = (hops + 1) // self.patch
        # Drop frames that belong to no state; the last state may lack one hop.
        kept = hops if (hops + 1) % self.patch == 0 else hops // self.patch * self.patch
        frames = self._frames(samples)[:, : states * self.patch]
        return ProcessedAudio(self._windows(frames), kept, states // self.stack)

    def _frames(self, samples: Samples) -> Features:
        """float32 [bins, frames]."""
        mirrored = np.pad(samples, self.n_fft // 2, mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(mirrored, self.n_fft)[:: self.hop]
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.length) / self.length)
        left = (self.n_fft - self.length) // 2
        shape = np.pad(hann, (left, self.n_fft - self.length - left))
        filters = htk_filters(self.n_fft, self.rate, self.bins, self.low, self.high)
        spectrum = np.empty((len(windows), self.bins))
        for first in range(0, len(windows), _BLOCK):
            block = slice(first, first + _BLOCK)
            spectrum[block] = _powers(windows[block] * shape) @ filters
        decibels = 10.0 * np.log10(np.maximum(spectrum, _FLOOR))
        clipped: Doubles = np.maximum(decibels, decibels.max() - _DYNAMIC)
        return clipped.astype(np.float32).T

    def _windows(self, frames: Features) -> Features:
        """float32 [windows, bins, frames of a window]."""
        size, (bins, count) = self.window_frames, frames.shape
        if count <= size:
            return np.ascontiguousarray(frames[None])
        padded = np.pad(frames, ((0, 0), (0, -count % size)))
        return np.ascontiguousarray(padded.reshape(bins, -1, size).transpose(1, 0, 2))


def _powers(frames: Doubles) -> Doubles:
    powers: Doubles = np.abs(np.fft.rfft(frames)) ** 2
    return powers
