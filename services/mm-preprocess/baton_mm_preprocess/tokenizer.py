"""The tokenizer of a checkpoint, for the texts around image tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from baton.checkpoint.gguf_header import read_metadata
from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError


@cache
def _read(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))


def encode(path: Path, text: str) -> list[int]:
    """Token ids of a text, without those that begin or end a prompt.

    Raises:
        ModelError: the folder has no tokenizer.json, or the vocabulary of the GGUF file cannot
            spell the text.
    """
    if path.is_file():
        return _spell(_vocabulary(path), text)
    file = text_folder(path) / "tokenizer.json"
    if not file.is_file():
        raise ModelError("it has no tokenizer.json, which says how images are framed")
    ids: list[int] = _read(file).encode(text, add_special_tokens=False).ids
    return ids


@cache
def _vocabulary(file: Path) -> dict[str, int]:
    tokens = read_metadata(file).get("tokenizer.ggml.tokens") or ()
    return {token: number for number, token in enumerate(tokens)}


def _spell(vocabulary: dict[str, int], text: str) -> list[int]:
    """The longest tokens from the left: marks of images are tokens, and so are the line breaks
    and the words between them."""
    ids = list[int]()
    while text:
        for end in range(len(text), 0, -1):
            found = next((s for s in _stored(text[:end]) if s in vocabulary), None)
            if found is not None:
                ids.append(vocabulary[found])
                text = text[end:]
                break
        else:
            raise ModelError(f"its vocabulary has no token for {text[:1]!r}, which frames images")
    return ids


def _stored(text: str) -> tuple[str, str, str]:
    """A text as vocabularies hold it: as it is, in the characters that stand for bytes, or with
    the mark of SentencePiece for spaces."""
    return text, text.replace("\n", "Ċ").replace(" ", "Ġ"), text.replace(" ", "▁")
