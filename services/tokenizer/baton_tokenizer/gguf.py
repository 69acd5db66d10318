"""Vocabularies inside GGUF files, rewritten as the tokenizer.json that they were made from.

Keys follow https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, token types
`llama_token_type` of llama.cpp. Two kinds are read: "gpt2" (byte-level BPE with merges) and "llama"
(SentencePiece BPE with scores and byte fallback).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from baton.errors import ModelError
from baton.gguf import read_metadata
from baton_tokenizer.pretokenizers import byte_level, cut, pre_tokenizer
from baton_tokenizer.vocab import Source

_TEMPLATE = "tokenizer.chat_template"
_TURN_ENDS = frozenset(("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>"))
"""Control tokens that end a turn even when the metadata names only the end of a text."""


class TokenType(IntEnum):
    """What a token is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Metadata:
    """The vocabulary's part of a GGUF file's metadata."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def ggml(self, key: str, default: Any = None) -> Any:
        """The value of `tokenizer.ggml.<key>`."""
        return self._fields.get(f"tokenizer.ggml.{key}", default)

    def need(self, key: str) -> Any:
        """The value of `tokenizer.ggml.<key>`. Raises `ModelError` when it is missing."""
        value = self.ggml(key)
        if value is None:
            raise ModelError(f"The GGUF file has no tokenizer.ggml.{key}: it holds no vocabulary.")
        return value

    def templates(self) -> dict[str, str]:
        """Chat templates by name."""
        keys = [key for key in self._fields if key.startswith(f"{_TEMPLATE}.")]
        named = {key.removeprefix(f"{_TEMPLATE}."): str(self._fields[key]) for key in keys}
        default = self._fields.get(_TEMPLATE)
        return named if default is None else named | {"default": default}


def read_gguf(path: Path) -> Source:
    """The tokenizer of a GGUF file. Raises `ModelError` for a kind that is not supported."""
    data = Metadata(read_metadata(path))
    tokens: list[str] = data.need("tokens")
    types = data.ggml("token_type") or [TokenType.NORMAL] * len(tokens)
    spec = _kind(data.need("model"))(data, tokens, types)
    spec["added_tokens"] = _added(tokens, types)
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {role: data.ggml(f"{key}_token_id") for key, role in roles.items()}
    return Source(
        spec=spec,
        templates=data.templates(),
        named={f"{role}_token": tokens[i] for role, i in ids.items() if _valid(i, tokens)},
        eos_ids=_eos_ids(data, tokens, types),
    )


def _valid(token: int | None, tokens: Sequence[str]) -> bool:
    return token is not None and 0 <= token < len(tokens)


def _kind(kind: str) -> Callable[[Metadata, list[str], list[int]], dict[str, Any]]:
    kinds = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in kinds:
        raise ModelError(
            f"The GGUF vocabulary is of kind '{kind}'. Supported: {', '.join(kinds)}. Serve the "
            "Hugging Face folder of this model instead."
        )
    return kinds[kind]


def _byte_level(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    words = cut(data.ggml("pre", "default"))
    merges = [_split(merge) for merge in data.need("merges")]
    return {
        "version": "1.0",
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer(words.patterns),
        "post_processor": _post_processor(data, tokens, bos=words.adds_bos),
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
            "ignore_merges": words.whole_words,
        },
    }


def _split(merge: str) -> list[str]:
    """The two sides of a merge. The left one may itself be a space."""
    middle = merge.index(" ", 1)
    return [merge[:middle], merge[middle + 1 :]]


def _sentencepiece(data: Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    unknown = data.ggml("unknown_token_id", 0)
    prefix = data.ggml("add_space_prefix", True)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps: list[dict[str, Any]] = (
        [{"type": "Prepend", "prepend": "▁"}, space] if prefix else [space]
    )
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": int(prefix), "stop": 0},
    ]
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": _post_processor(data, tokens, bos=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": scored_merges(tokens, types, data.need("scores")),
            "unk_token": tokens[unknown] if _valid(unknown, tokens) else None,
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


def scored_merges(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merges that SentencePiece performs, best first: every split of a piece into two pieces.

    SentencePiece merges the neighbours whose union has the highest score; a list of merges in the
    order of that score makes BPE do the same (Hugging Face's converter does this too).
    """
    normal = {t: i for i, t in enumerate(tokens) if types[i] == TokenType.NORMAL}
    ranked = [
        (-scores[i], -cutting, i, left, token[cutting:])
        for token, i in normal.items()
        for cutting in range(1, len(token))
        if (left := token[:cutting]) in normal and token[cutting:] in normal
    ]
    return [(left, right) for *_, left, right in sorted(ranked)]


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that are found in text before any merging."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        {"id": i, "content": token, "special": kind == TokenType.CONTROL, **plain}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in kinds and token
    ]


def _post_processor(data: Metadata, tokens: Sequence[str], *, bos: bool) -> dict[str, Any] | None:
    """Adds the ids that every text begins and ends with; `bos` is the default of the kind."""
    first, last = data.ggml("bos_token_id"), data.ggml("eos_token_id")
    before = [first] if data.ggml("add_bos_token", bos) and _valid(first, tokens) else []
    after = [last] if data.ggml("add_eos_token", False) and _valid(last, tokens) else []
    if not before and not after:
        return None

    def special(token: int, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokens[token], "type_id": kind}}

    def around(name: str, kind: int) -> list[dict[str, Any]]:
        body = {"Sequence": {"id": name, "type_id": kind}}
        return [*(special(t, kind) for t in before), body, *(special(t, kind) for t in after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            tokens[t]: {"id": tokens[t], "ids": [t], "tokens": [tokens[t]]} for t in before + after
        },
    }


def _eos_ids(data: Metadata, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    named = [data.ggml(f"{role}_token_id") for role in ("eos", "eot", "eom")]
    ends = [i for i, t in enumerate(tokens) if t in _TURN_ENDS and types[i] == TokenType.CONTROL]
    return tuple(dict.fromkeys(i for i in [*named, *ends] if _valid(i, tokens)))
