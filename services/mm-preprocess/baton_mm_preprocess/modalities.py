"""Which media a model takes, read from its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.errors import InvalidRequest, ModelError
from baton.protocol import MediaItem

MODALITIES = ("image", "video", "audio")
_KEYS = {
    "image": ("vision_config", "vision_tower", "mm_vision_tower", "image_token_id"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_config", "audio_encoder_config", "audio_token_id", "num_mel_bins"),
}
"""Keys of config.json by which published checkpoints announce an encoder."""
_NESTED = ("thinker_config",)
"""Keys under which omni models keep the configuration of the part that listens and sees."""


@dataclass(frozen=True)
class Model:
    """A model as this service sees it."""

    name: str
    """Name under which it is served."""
    architecture: str
    """First entry of `architectures` in config.json, or "GGUF"."""
    modalities: tuple[str, ...] = ()
    """Some of `MODALITIES`; empty for a text-only model."""

    def check(self, item: MediaItem) -> None:
        """Raise `InvalidRequest` that says why this media part cannot be served."""
        if item.modality not in self.modalities:
            takes = f"It takes text and {', '.join(self.modalities)}." if self.modalities else ""
            reason = takes or "It takes text only."
            message = f"The model {self.name} does not take {item.modality} input. {reason}"
        else:
            message = (
                f"The model {self.name} takes {item.modality} input, but Baton does not support "
                f"media for the architecture {self.architecture} yet. Send text only."
            )
        raise InvalidRequest(message, code="unsupported_value", param=item.param)


def read_model(path: Path, name: str) -> Model:
    """The model at `path`, a folder with config.json or a GGUF file. Raises `ModelError`.

    A GGUF file of a language model holds no encoder: llama.cpp keeps encoders in files of their
    own, whose names begin with "mmproj".
    """
    if path.is_file():
        return Model(name, "GGUF")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json of {name} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelError(f"config.json of {name} must hold a JSON object.")
    architectures = config.get("architectures") or ["unknown"]
    return Model(name, str(architectures[0]), modalities(config))


def modalities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The media that a configuration speaks of, in the order of `MODALITIES`."""
    parts = [config, *(config[key] for key in _NESTED if isinstance(config.get(key), dict))]
    return tuple(
        kind
        for kind in MODALITIES
        if any(part.get(key) is not None for part in parts for key in _KEYS[kind])
    )
