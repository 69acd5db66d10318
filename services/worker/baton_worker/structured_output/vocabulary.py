"""The bytes that each token of a checkpoint stands for, read from the checkpoint itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.checkpoint import byte_tokens
from baton.checkpoint.gguf_header import read_metadata
from baton.checkpoint.json_file import read_json, readable_fields
from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError

_SPACE = "\u2581"
_NORMAL, BYTE, _USER_DEFINED = 1, 6, 4
"""`llama_token_type` of llama.cpp; every other type is a special token."""


@dataclass(frozen=True)
class Vocabulary:
    """The token data of a grammar engine."""

    pieces: tuple[bytes, ...]
    """One per logit. Empty: never part of a text (special, unused, padding)."""

    @classmethod
    def read(cls, path: Path, size: int) -> Vocabulary:
        """From a model directory with a tokenizer.json, or from a GGUF file.

        Args:
            size: number of logits; tokens beyond it are cut, logits without a token are empty.

        Raises `ModelError` when there is no vocabulary to read.
        """
        pieces = (
            _from_gguf(path) if path.is_file() else _from_json(text_folder(path) / "tokenizer.json")
        )
        table = [b""] * size
        with readable_fields(f"the vocabulary in {path}"):
            for token, piece in pieces:
                if token < size:
                    table[token] = piece
        return cls(tuple(table))


def _from_json(path: Path) -> Iterable[tuple[int, bytes]]:
    if not path.is_file():
        raise ModelError(f"{path} does not exist: without it no grammar can be followed.")
    data = read_json(path)
    vocab, byte_level = data["model"]["vocab"], "ByteLevel" in json.dumps(data["decoder"])
    if isinstance(vocab, list):
        raise ModelError("A Unigram vocabulary cannot be constrained by grammars here.")
    for name, token in vocab.items():
        yield token, byte_tokens.byte_level(name) if byte_level else _sentence(name)
    for added in data["added_tokens"]:
        yield added["id"], b"" if added["special"] else added["content"].encode()


def _from_gguf(path: Path) -> Iterable[tuple[int, bytes]]:
    metadata = read_metadata(path)
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    byte_level = metadata.get("tokenizer.ggml.model") == "gpt2"
    if not tokens:
        raise ModelError(f"{path.name} has no vocabulary: without it no grammar can be followed.")
    for token, (name, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind == _USER_DEFINED:
            yield token, name.encode()
        elif kind in (_NORMAL, BYTE):
            yield token, byte_tokens.byte_level(name) if byte_level else _sentence(name)


def _sentence(name: str) -> bytes:
    """A SentencePiece token."""
    byte = byte_tokens.byte_fallback(name)
    return name.replace(_SPACE, " ").encode() if byte is None else byte
