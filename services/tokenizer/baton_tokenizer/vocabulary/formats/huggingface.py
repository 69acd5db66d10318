"""A Hugging Face folder with tokenizer.json, which is used unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json
from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError
from baton_tokenizer.vocabulary.formats.checkpoint_folder import Folder
from baton_tokenizer.vocabulary.vocabulary import Source

_FILE = "tokenizer.json"


class HuggingFace:
    """A vocabulary in the format of the `tokenizers` library."""

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether the folder has the file."""
        return (text_folder(path) / _FILE).is_file()

    @staticmethod
    def read(path: Path) -> Source:
        """The tokenizer of a folder."""
        spec = read_json(text_folder(path) / _FILE)
        spec.setdefault("added_tokens", [])
        _check(spec)
        return Folder(path).source(spec)


def _check(spec: dict[str, Any]) -> None:
    """Check the parts that are read here; the library checks the others when it builds them."""
    tokens = spec["added_tokens"]
    listed = isinstance(tokens, list) and all(
        isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and isinstance(token.get("id"), int)
        for token in tokens
    )
    if not listed or not isinstance(spec.get("model"), dict):
        raise ModelError(
            f"{_FILE} has no model, or added tokens without content and id: it is not what the "
            "tokenizers library writes. Save the tokenizer again with save_pretrained."
        )
