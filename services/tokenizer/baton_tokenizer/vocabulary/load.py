"""Loads vocabularies from any supported file format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from baton.checkpoint.json_file import readable_fields
from baton.errors import ModelError
from baton_tokenizer.vocabulary.formats import FORMATS
from baton_tokenizer.vocabulary.formats.checkpoint_folder import read_template
from baton_tokenizer.vocabulary.vocabulary import Source, TokenizerVocabulary, build


def load(path: Path, chat_template: Path | None = None) -> TokenizerVocabulary:
    """Load the vocabulary of a model.

    `path` is a file or folder that one of `FORMATS` reads. The file `chat_template` replaces the
    checkpoint's templates. Raises `ModelError` for a missing or unsupported vocabulary,
    `SettingsError` for an unreadable template.
    """
    source = read(path)
    if chat_template is not None:
        source = replace(source, templates={"default": read_template(chat_template)})
    with readable_fields(f"the tokenizer files in {path}"):
        return build(source)


def read(path: Path) -> Source:
    """Read a path with the first format that fits. Raises `ModelError` if none does."""
    for name in FORMATS.names():
        format = FORMATS.load(name)
        if format.fits(path):
            with readable_fields(f"the configs and tokenizer files in {path}"):
                source: Source = format.read(path)
            return source
    raise ModelError(
        f"{path} holds no tokenizer: expected tokenizer.json, one .gguf file, tekken.json, a "
        ".tiktoken file, or a sentencepiece model (tokenizer.model)."
    )
