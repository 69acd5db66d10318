"""Tokens that were added to a checkpoint's vocabulary, by their texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError

_FILES = ("tokenizer_config.json", "added_tokens.json", "tokenizer.json")
"""Small files first: the last one contains the complete vocabulary."""


def added_tokens(folder: Path) -> dict[str, int]:
    """Texts and ids of the added tokens, from the first file next to config.json that lists them;
    empty without such a file.

    Raises:
        ModelError: a file has an unknown format.
    """
    for name in _FILES:
        try:
            if (folder / name).is_file() and (tokens := dict(_listed(read_json(folder / name)))):
                return tokens
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / name} lists added tokens in no known form.") from error
    return {}


def _listed(content: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The tokens of a file in any of the three formats."""
    for token, fields in (content.get("added_tokens_decoder") or {}).items():
        yield fields["content"], int(token)
    for fields in content.get("added_tokens") or ():
        yield fields["content"], fields["id"]
    if all(isinstance(token, int) for token in content.values()):
        yield from content.items()
