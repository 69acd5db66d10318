"""Spectrograms of conformer encoders, each equal to transformers' feature extractor."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
import numpy.typing as npt

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Doubles, Features, Samples
from baton_mm_preprocess.media_errors import exceeds

_FULL_SCALE = 32_768
"""Full scale of 16-bit samples."""
_PADDED = 128
"""Samples to a multiple of which Gemma 3n's extractor pads."""
_DYNAMIC = 8.0
"""Dynamic range below the loudest value, in decades."""
_FLOOR = 1e-10
_BLOCK = 4096
"""Number of frames per FFT batch."""


class UsmFeatures(msgspec.Struct, frozen=True, tag="usm"):
    """Gemma 3n's features (Universal Speech Model, arXiv:2303.01037): magnitudes of pre-emphasised
    frames, natural logarithms. Every sound has `soft_tokens` embeddings and one for its end
    token."""

    soft_tokens: int
    bins: int = 128
    rate: int = 16_000
    frame_ms: float = 32.0
    hop_ms: float = 10.0
    low: float = 125.0
    high: float = 7600.0
    preemphasis: float = 0.97
    htk_preemphasis: bool = True
    overdrive: bool = True
    floor: float = 1e-5
    factor: float = 1.0
    """Applied to samples."""
    max_seconds: int = 30
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    """Per bin; empty for 0 and 1."""

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]. Raises `InvalidRequest` if there are too many, or fewer than a
        frame."""
        if len(samples) > self.max_seconds * self.rate:
            raise exceeds("audio", f"is longer than the {self.max_seconds} s that this model takes")
        padded = np.pad(samples * self.factor, (0, -len(samples) % _PADDED))
        length, hop = (round(self.rate * ms / 1000) for ms in (self.frame_ms, self.hop_ms))
        frames = self._emphasised(_windows(padded, length + 1, hop))
        shape = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length, dtype=np.float32) / length)
        size = 2 ** (math.ceil(math.log2(length)) + self.overdrive)
        filters = htk_filters(size, self.rate, self.bins, self.low, self.high)
        levels = _spectra(frames, shape.astype(np.float32), size, np.abs) @ filters
        features = self._scaled(np.log(np.maximum(levels, self.floor)))
        return ProcessedAudio(_features(features), len(features), self.soft_tokens + 1)

    def _emphasised(self, frames: Samples) -> Samples:
        """Convert frames of one sample more than a window to windows."""
        if not self.preemphasis:
            return frames[:, :-1]
        if not self.htk_preemphasis:
            return frames[:, 1:] - self.preemphasis * frames[:, :-1]
        first = frames[:, :1] * (1.0 - self.preemphasis)
        rest = frames[:, 1:-1] - self.preemphasis * frames[:, :-2]
        return np.concatenate((first, rest), axis=1)

    def _scaled(self, x: Doubles) -> Doubles:
        x = x - np.array(self.mean) if self.mean else x
        return x / np.array(self.deviation) if self.deviation else x


class KaldiFeatures(msgspec.Struct, frozen=True, tag="kaldi"):
    """Phi-4-multimodal's features (arXiv:2503.01743): powers of pre-emphasised frames, Kaldi's mel
    filters, natural logarithms. One embedding per `compression` frames."""

    compression: int = 8
    bins: int = 80
    rate: int = 16_000
    hop: int = 160
    n_fft: int = 512
    window: int = 400
    preemphasis: float = 0.97
    low: float = 0.0
    high: float = 7690.0

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]. Raises `InvalidRequest` if there are fewer than a frame."""
        frames = _windows(samples, self.window, self.hop)
        # The first sample has no predecessor: the extractor uses the sample itself.
        before = np.concatenate((frames[:, :1], frames[:, :-1]), axis=1)
        raised = (frames - np.float32(self.preemphasis) * before) * np.float32(_FULL_SCALE)
        powers = _spectra(raised, np.hamming(self.window), self.n_fft, lambda x: np.abs(x) ** 2)
        filters = kaldi_filters(self.n_fft, self.rate, self.bins, self.low, self.high)
        mels = np.log(np.maximum(powers @ filters, 1.0))
        return ProcessedAudio(_features(mels), len(mels), -(-len(mels) // self.compression))


class PairedFeatures(msgspec.Struct, frozen=True, tag="paired"):
    """Granite Speech's features (arXiv:2505.08699): powers by HTK's mel filters, logarithms scaled
    as Whisper's; two adjacent frames are joined. `queries` embeddings per `window` of them."""

    window: int = 15
    queries: int = 3
    bins: int = 80
    rate: int = 16_000
    hop: int = 160
    n_fft: int = 512
    length: int = 400

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]. Raises `InvalidRequest` if there are fewer than a frame."""
        if len(samples) <= self.n_fft // 2:
            raise too_short()
        mirrored = np.pad(samples, self.n_fft // 2, mode="reflect")
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.length) / self.length)
        left = (self.n_fft - self.length) // 2
        shape = np.pad(hann, (left, self.n_fft - self.length - left))
        frames = _windows(mirrored, self.n_fft, self.hop)
        powers = _spectra(frames, shape, self.n_fft, lambda x: np.abs(x) ** 2)
        filters = htk_filters(self.n_fft, self.rate, self.bins, 0.0, self.rate / 2)
        logs = np.log10(np.maximum(powers @ filters, _FLOOR))
        scaled = np.maximum(logs, logs.max() - _DYNAMIC) / 4 + 1
        pairs = scaled[: len(scaled) // 2 * 2].reshape(-1, 2 * self.bins)
        tokens = -(-len(pairs) // self.window) * self.queries
        return ProcessedAudio(_features(pairs), len(pairs), tokens)


def too_short() -> InvalidRequest:
    """Error for a sound that is shorter than a frame."""
    return InvalidRequest(
        "The audio is too short: this model needs at least one window of it.",
        code="audio_too_short",
    )


@cache
def htk_filters(n_fft: int, rate: int, bins: int, low: float, high: float) -> Doubles:
    """Triangular filters in Hz, equally spaced in HTK's mels: [n_fft // 2 + 1, bins]."""
    first, last = 2595.0 * np.log10(1.0 + np.array([low, high]) / 700.0)
    corners = 700.0 * (10.0 ** (np.linspace(first, last, bins + 2) / 2595.0) - 1.0)
    return _triangles(_hertz(n_fft, rate), corners)


@cache
def kaldi_filters(n_fft: int, rate: int, bins: int, low: float, high: float) -> Doubles:
    """Triangular filters in Kaldi's mels: [n_fft // 2 + 1, bins]."""
    first, last = _kaldi(np.array([low, high]))
    return _triangles(_kaldi(_hertz(n_fft, rate)), np.linspace(first, last, bins + 2))


def _hertz(n_fft: int, rate: int) -> Doubles:
    return np.linspace(0.0, rate / 2, n_fft // 2 + 1)


def _kaldi(hertz: Doubles) -> Doubles:
    mels: Doubles = 1127.0 * np.log(1.0 + hertz / 700.0)
    return mels


def _triangles(places: Doubles, corners: Doubles) -> Doubles:
    rise = (places[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    fall = (corners[2:] - places[:, None]) / (corners[2:] - corners[1:-1])
    filters: Doubles = np.maximum(0.0, np.minimum(rise, fall))
    return filters


def _windows(samples: Samples, length: int, hop: int) -> Samples:
    """[frames, length], one every `hop`. Raises `InvalidRequest` if there is none."""
    if len(samples) < length:
        raise too_short()
    return np.lib.stride_tricks.sliding_window_view(samples, length)[::hop]


def _spectra(
    frames: Samples,
    shape: npt.NDArray[np.floating],
    size: int,
    level: Callable[[npt.NDArray[np.complexfloating]], Doubles],
) -> Doubles:
    """float64 [frames, size // 2 + 1]."""
    blocks = [
        level(np.fft.rfft(frames[first : first + _BLOCK] * shape, n=size))
        for first in range(0, len(frames), _BLOCK)
    ]
    return np.concatenate(blocks)


def _features(values: Doubles) -> Features:
    """[frames, bins] to float32 [1, bins, frames]."""
    return np.ascontiguousarray(values.T[None], dtype=np.float32)
