"""Tokens that a checkpoint added to its vocabulary, by their texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError

_FILES = ("tokenizer_config.json", "added_tokens.json", "tokenizer.json")
"""Small files first: the last one holds the whole vocabulary too."""


def added_tokens(folder: Path) -> dict[str, int]:
    """Texts and ids of the added tokens, from the first file beside config.json that lists them;
    none if no file does.

    Raises:
        ModelError: a file is not what a tokenizer writes.
    """
    for name in _FILES:
        try:
            if (folder / name).is_file() and (found := dict(_listed(read_json(folder / name)))):
                return found
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / name} lists added tokens in no known form.") from error
    return {}


def _listed(content: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The tokens in a file of any of the three forms."""
    for token, fields in (content.get("added_tokens_decoder") or {}).items():
        yield fields["content"], int(token)
    for fields in content.get("added_tokens") or ():
        yield fields["content"], fields["id"]
    if all(isinstance(token, int) for token in content.values()):
        yield from content.items()
