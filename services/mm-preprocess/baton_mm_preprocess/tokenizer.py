"""The tokenizer of a checkpoint, for the texts around image tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError


@cache
def _read(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def encode(folder: Path, text: str) -> list[int]:
    """Token ids of a text, without those that begin or end a prompt.

    Raises:
        ModelError: the folder has no tokenizer.json.
    """
    file = text_folder(folder) / "tokenizer.json"
    if not file.is_file():
        raise ModelError("it has no tokenizer.json, which says how images are framed")
    ids: list[int] = _read(file).encode(text, add_special_tokens=False).ids
    return ids
