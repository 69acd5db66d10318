"""16-bit samples that arrive incrementally, as a file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_SAMPLE_BYTES = 2
_PCM = 1


@dataclass(slots=True)
class AudioBuffer:
    """Mono samples, little-endian."""

    rate: int
    """Samples per second."""
    data: bytearray = field(default_factory=bytearray)

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.data) / (_SAMPLE_BYTES * self.rate)

    def drop(self, seconds: float) -> None:
        """Remove the first samples."""
        del self.data[: _SAMPLE_BYTES * round(seconds * self.rate)]

    def wav(self, least: float = 0.0) -> bytes:
        """A WAV file, padded with silence to `least` seconds."""
        missing = max(0, round(least * self.rate) - len(self.data) // _SAMPLE_BYTES)
        data = bytes(self.data) + bytes(_SAMPLE_BYTES * missing)
        form = (_PCM, 1, self.rate, self.rate * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
        head = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, *form, b"data", len(data))
        return struct.pack("<4sI4s", b"RIFF", 4 + len(head) + len(data), b"WAVE") + head + data
