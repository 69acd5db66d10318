"""Log-mel spectrograms of chunks of a sound, for Whisper's encoder."""

from __future__ import annotations

import msgspec
import numpy as np

from baton_mm_preprocess.audio.processed_audio import ProcessedAudio
from baton_mm_preprocess.audio.spectrum import Features, LogMel, Samples
from baton_mm_preprocess.media_errors import exceeds

_LEAST_HOPS = 2
"""Padding mode of a sound whose end is mirrored."""
_READ_AHEAD = 2
"""Frames after the last one of a sound that the encoder's convolutions read for its last state."""


class LogMelChunks(msgspec.Struct, frozen=True, tag="log_mel_chunks"):
    """A sound is split into chunks of equal length; the last one is padded with silence.

    The encoder's convolutions produce one state per two frames, and its projector one embedding per
    `stack` states of a chunk.
    """

    spectrum: LogMel
    stack: int
    chunk_seconds: int = 30
    max_chunks: int = 0
    """Maximum chunks of the model; 0 for no limit."""
    masked: bool = True
    """Whether padding is removed before the encoder, except the frames that its convolutions
    read."""
    trimmed: bool = False
    """Whether the encoder processes padding, and its states for it are dropped."""
    shared_range: bool = False
    """Whether the dynamic range is relative to the loudest value of the sound, instead of each
    chunk."""
    rounded_up: bool = False
    """Whether a last group of fewer than `stack` states has an embedding."""
    exact: bool = False
    """Whether a sound is padded to its last hop only: its end is mirrored, and zeros fill the last
    of several chunks."""

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self.spectrum.rate

    @property
    def chunk_frames(self) -> int:
        """Frames of a complete chunk."""
        return self.chunk_seconds * self.rate // self.spectrum.hop

    def __call__(self, samples: Samples) -> ProcessedAudio:
        """Mono samples, float32 [n].

        Raises:
            InvalidRequest: the sound has more than `max_chunks`.
        """
        length = self.chunk_seconds * self.rate
        if self.max_chunks and len(samples) > self.max_chunks * length:
            most = self.max_chunks * self.chunk_seconds
            raise exceeds("audio", f"is longer than the {most} s that this model takes")
        num_frames = -(-len(samples) // self.spectrum.hop)
        num_frames = max(num_frames, _LEAST_HOPS) if self.exact else num_frames
        features = self._features(samples, num_frames, length)
        all_heard = not (self.masked or self.trimmed)
        heard = len(features) * self.chunk_frames if all_heard else num_frames
        return ProcessedAudio(features, heard, self.num_tokens(heard))

    def num_tokens(self, num_frames: int) -> int:
        """Number of embeddings of chunks with these numbers of frames."""
        chunks, rest = divmod(num_frames, self.chunk_frames)
        return chunks * self._of_chunk(self.chunk_frames) + self._of_chunk(rest)

    def _of_chunk(self, num_frames: int) -> int:
        states = (num_frames + 1) // 2
        return -(-states // self.stack) if self.rounded_up else states // self.stack

    def _features(self, samples: Samples, num_frames: int, length: int) -> Features:
        """float32 [chunks, mels, frames]."""
        if self.exact:
            return self._exact(samples, num_frames)
        if self.masked and num_frames <= self.chunk_frames:
            return self._short(samples, min(num_frames + _READ_AHEAD, self.chunk_frames), length)
        count = -(-len(samples) // length)
        padded = np.pad(samples, (0, count * length - len(samples)))
        if not self.shared_range:
            return np.stack([self.spectrum(part) for part in np.split(padded, count)])
        parts = np.split(self.spectrum(padded), count, axis=1)
        return np.ascontiguousarray(np.stack(parts))

    def _exact(self, samples: Samples, num_frames: int) -> Features:
        """All frames of one chunk, or complete chunks."""
        hop, size = self.spectrum.hop, self.chunk_frames
        frames = self.spectrum(np.pad(samples, (0, num_frames * hop - len(samples))))
        if frames.shape[1] <= size:
            return np.ascontiguousarray(frames[None])
        padded = np.pad(frames, ((0, 0), (0, -frames.shape[1] % size)))
        return np.ascontiguousarray(padded.reshape(len(padded), -1, size).transpose(1, 0, 2))

    def _short(self, samples: Samples, num_frames: int, length: int) -> Features:
        """The first frames of one chunk. Silence after them only affects the last half window."""
        num_samples = min(length, num_frames * self.spectrum.hop + self.spectrum.n_fft)
        padded = np.pad(samples, (0, max(0, num_samples - len(samples))))
        return np.ascontiguousarray(self.spectrum(padded)[None, :, :num_frames])
