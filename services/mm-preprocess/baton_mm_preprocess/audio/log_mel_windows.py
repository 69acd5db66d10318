"""Log-mel spectrograms of complete sounds, split into windows that an encoder processes one by
one."""

from __future__ import annotations

import msgspec
import numpy as np

from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Features, LogMel, Samples
from baton_mm_preprocess.media_errors import exceeds


class LogMelWindows(msgspec.Struct, frozen=True, tag="log_mel_windows"):
    """The frames of a sound in windows of `window_frames`; the last one is padded with zeros.

    The encoder's convolutions halve the frames of a window `halvings` times, rounded up, and its
    projector produces one embedding per `pooled` states.
    """

    spectrum: LogMel
    window_frames: int
    halvings: int
    pooled: int = 1
    min_samples: int = 0
    """Shorter sounds are padded with silence."""
    max_seconds: int = 0
    """Maximum length of a sound; 0 for no limit."""
    silent_end: bool = False
    """Whether the last frame is padded with silence, including a partial frame; otherwise the sound
    is mirrored there."""
    filled: bool = True
    """Whether a single window is padded with zeros."""

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.spectrum.rate

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n]. Raises `InvalidRequest` if there are too many."""
        if self.max_seconds and len(samples) > self.max_seconds * self.rate:
            raise exceeds("audio", f"is longer than the {self.max_seconds} s that this model takes")
        frames = self._frames(np.pad(samples, (0, max(0, self.min_samples - len(samples)))))
        count = frames.shape[1]
        return ProcessedAudio(self._windows(frames), count, self.num_tokens(count))

    def num_tokens(self, num_frames: int) -> int:
        """Number of embeddings of this number of frames."""
        windows, rest = divmod(num_frames, self.window_frames)
        return windows * self._of_window(self.window_frames) + self._of_window(rest)

    def _of_window(self, frames: int) -> int:
        states = -(-frames // (1 << self.halvings))
        return states // self.pooled

    def _frames(self, samples: Samples) -> Features:
        """float32 [mels, frames]."""
        hop, silence = self.spectrum.hop, self.spectrum.n_fft
        if not self.silent_end:
            return self.spectrum(samples)
        count = -(-len(samples) // hop)
        padded = np.pad(samples, (0, count * hop - len(samples) + silence))
        return self.spectrum(padded)[:, :count]

    def _windows(self, frames: Features) -> Features:
        """float32 [windows, mels, frames of a window]."""
        size, (mels, count) = self.window_frames, frames.shape
        if count < size and not self.filled:
            return np.ascontiguousarray(frames[None])
        windows = -(-count // size)
        padded = np.pad(frames, ((0, 0), (0, windows * size - count)))
        return np.ascontiguousarray(padded.reshape(mels, windows, size).transpose(1, 0, 2))
