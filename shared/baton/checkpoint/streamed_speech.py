"""What a model that writes while it hears has before and behind a recording (Voxtral Realtime,
arXiv:2602.11298), from the files of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from baton.checkpoint.json_file import read_json

ARCHITECTURES = ("VoxtralRealtimeForConditionalGeneration", "VoxtralRealtimeGeneration")
TOKEN_SECONDS = 0.08
"""Of sound, beside each token."""
_FILE = "tekken.json"
_LEFT, _DELAY, _SPARE = 32, 6, 10
"""Tokens of silence before a recording, by which an answer is behind it, and for a long word at its
end; the first two are those of checkpoints that do not say them."""


class StreamedSpeech(NamedTuple):
    """Numbers of tokens, of `TOKEN_SECONDS` each."""

    left: int
    """Of silence before a recording."""
    delay: int
    """By which an answer is behind what is heard."""

    @property
    def right(self) -> int:
        """Of silence behind a recording."""
        return self.delay + 1 + _SPARE

    @property
    def num_pads(self) -> int:
        """Behind the first token of a prompt."""
        return self.left + self.delay


def read_streamed_speech(folder: Path, config: Mapping[str, Any]) -> StreamedSpeech:
    """Of the checkpoint in a folder. Raises `ModelError` for a tekken.json that is no JSON object.

    Args:
        config: content of config.json, whose delay is the one that norms are conditioned on.
    """
    content = read_json(folder / _FILE) if (folder / _FILE).is_file() else {}
    audio = content.get("audio")
    left = audio.get("streaming_n_left_pad_tokens") if isinstance(audio, Mapping) else None
    delay = config.get("default_num_delay_tokens")
    return StreamedSpeech(
        left if isinstance(left, int) else _LEFT, delay if isinstance(delay, int) else _DELAY
    )
