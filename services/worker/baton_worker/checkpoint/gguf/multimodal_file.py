"""A GGUF file with the encoder beside it, as one checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from baton.checkpoint.gguf_projector import Projector, read_projector
from baton.errors import ModelError
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.gguf.file import GgufFile
from baton_worker.checkpoint.gguf.projector_file import ProjectorFile
from baton_worker.checkpoint.unstack import Stored
from baton_worker.spec import Decoder

log = logging.getLogger(__name__)


def open_gguf(path: Path) -> Checkpoint:
    """The model of a GGUF file: with the encoder beside it, or for texts alone.

    An encoder that cannot be used is a warning; the media preprocessor refuses its images.
    """
    text = GgufFile(path)
    try:
        projector = read_projector(path)
    except ModelError as error:
        log.warning("%s is served for texts alone: %s", path.name, error)
        return text
    return text if projector is None else MultimodalGguf(text, projector)


class MultimodalGguf:
    """A language model and its encoder."""

    def __init__(self, text: GgufFile, projector: Projector) -> None:
        self._text, self._projector = text, projector
        self.eos_token_ids = text.eos_token_ids
        outer = dict(projector.config)
        inner = vars(text.config) | outer.pop("text_config", {})
        inner["model_type"] = projector.text_type
        if sections := text.own("rope.dimension_sections", None):
            rope = vars(text.config.rope_parameters) | {"mrope_section": sections[:3]}
            inner["rope_parameters"] = SimpleNamespace(**rope)
        self.config = SimpleNamespace(
            architectures=[projector.architecture],
            text_config=SimpleNamespace(**inner),
            tie_word_embeddings=text.config.tie_word_embeddings,
            **_namespaces(outer),
        )

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Stored]]:
        """Every tensor of both files under its Hugging Face name."""
        yield from self._text.tensors(spec)
        yield from ProjectorFile(self._projector).tensors()


def _namespaces(fields: dict[str, object]) -> dict[str, object]:
    """A config as its readers want it: objects as namespaces."""
    return {
        name: SimpleNamespace(**value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }
