"""A Hugging Face folder with tokenizer.json, which is used unchanged."""

from __future__ import annotations

from pathlib import Path

from baton.checkpoint.json_file import read_json
from baton.checkpoint.part_folders import text_folder
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
        return Folder(path).source(spec)
