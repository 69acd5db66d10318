"""Padding of recordings for streaming speech models (Voxtral Realtime, arXiv:2602.11298), from the
files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from baton.checkpoint.json_file import read_json

ARCHITECTURES = ("VoxtralRealtimeForConditionalGeneration", "VoxtralRealtimeGeneration")
TOKEN_SECONDS = 0.08
"""Seconds of sound per token."""
_FILE = "tekken.json"
_LEFT, _DELAY, _SPARE = 32, 6, 10
"""Tokens of silence before a recording, of the answer's delay, and of the padding at the end for a
long word. The first two are defaults for checkpoints without them."""


class StreamedSpeech(NamedTuple):
    """Numbers of tokens of `TOKEN_SECONDS` each."""

    left: int
    """Silence before a recording."""
    delay: int
    """Delay of an answer after the audio."""

    @property
    def right(self) -> int:
        """Silence after a recording."""
        return self.delay + 1 + _SPARE

    @property
    def num_pads(self) -> int:
        """Padding tokens after the first token of a prompt."""
        return self.left + self.delay


def read_streamed_speech(folder: Path, config: Mapping[str, Any]) -> StreamedSpeech:
    """Read them from a checkpoint folder. Raises `ModelError` if tekken.json is no JSON object.

    Args:
        config: content of config.json, whose delay conditions the norms.
    """
    content = read_json(folder / _FILE) if (folder / _FILE).is_file() else {}
    audio = content.get("audio")
    left = audio.get("streaming_n_left_pad_tokens") if isinstance(audio, Mapping) else None
    delay = config.get("default_num_delay_tokens")
    return StreamedSpeech(
        left if isinstance(left, int) else _LEFT, delay if isinstance(delay, int) else _DELAY
    )
