"""Models that take audio: processor, token and placeholder, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from baton_mm_preprocess.audio import readers
from baton_mm_preprocess.audio.readers import AudioFiles, AudioReader
from baton_mm_preprocess.processors.families import single
from baton_mm_preprocess.processors.placeholders import Encode, Piece

AudioPlaceholder: TypeAlias = Callable[[int], Iterable[Piece]]
"""The number of embeddings of a sound to what stands for it."""


def plain(num_tokens: int) -> list[Piece]:
    """Audio tokens alone."""
    return [num_tokens]


@dataclass(frozen=True, slots=True)
class AudioFamily:
    """How a family takes sounds."""

    reader: AudioReader
    token: str
    """Token in whose place an embedding goes, if the config names none."""
    placeholder: AudioPlaceholder = plain
    marker: str = ""
    """Token by which the chat template says that there is a sound; the audio token if empty."""
    names: tuple[str, ...] = ("audio_token_id", "audio_token_index")
    """Fields of the config that may name the token."""

    def audio_token(self, files: AudioFiles, encode: Encode) -> int:
        """Id of the token in whose place an embedding goes. Raises `ModelError`."""
        for name in self.names:
            if isinstance(value := files.config.get(name), int):
                return value
        return single(self.token, encode)

    def marker_token(self, files: AudioFiles, encode: Encode) -> int:
        """Id of the marker. Raises `ModelError`."""
        return single(self.marker, encode) if self.marker else self.audio_token(files, encode)


AUDIO_FAMILIES: dict[str, AudioFamily] = {
    "Qwen2AudioForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=2, max_chunks=1), "<|AUDIO|>"
    ),
}
"""By the name of the architecture in config.json."""
