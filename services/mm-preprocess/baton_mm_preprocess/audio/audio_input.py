"""Audio preprocessing of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from baton.errors import ModelError
from baton_mm_preprocess.audio.families import AudioFamily, AudioPlaceholder
from baton_mm_preprocess.audio.readers import AudioProcessor, audio_files
from baton_mm_preprocess.processors.placeholders import token_ids
from baton_mm_preprocess.tokenizer import encode


@dataclass(frozen=True)
class AudioInput:
    """Audio input of a model."""

    processor: AudioProcessor
    marker: int
    """Token of the chat template that marks a sound."""
    audio_token: int
    """Token whose embedding is replaced."""
    placeholder: AudioPlaceholder
    folder: Path
    """Checkpoint folder, for the tokenizer."""
    alone: bool = False
    """Whether a request with sounds must not have images."""
    cross: bool = False
    """Whether tokens attend to the encoder's states (cross-attention), which replace no
    embeddings."""
    alongside: bool = False
    """As `AudioFamily.alongside`."""

    def tokens(self, num_tokens: int) -> list[int]:
        """Placeholder ids of a sound with this number of embeddings."""
        spell = partial(encode, self.folder)
        return token_ids(self.placeholder(num_tokens), self.audio_token, spell)


def read_audio(path: Path, name: str, config: Mapping[str, Any], family: AudioFamily) -> AudioInput:
    """The audio input of the checkpoint in the folder `path`.

    Raises:
        ModelError: files are missing or contradict each other; the message is half a sentence.
    """
    if family.needs and not any(config.get(name) for name in family.needs):
        raise ModelError("its config.json has no encoder of sounds")
    files, spell = audio_files(path, name, config), partial(encode, path)
    try:
        processor = family.reader(files)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(
            f"its feature extractor has a field that makes no sense: {error}"
        ) from error
    return AudioInput(
        processor,
        family.marker_token(files, spell),
        family.audio_token(files, spell),
        family.placeholder,
        path,
        family.alone,
        family.cross,
        family.alongside,
    )
