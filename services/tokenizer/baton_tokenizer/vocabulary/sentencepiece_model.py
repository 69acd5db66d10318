"""Converts SentencePiece vocabularies of any file format to a tokenizer.json.

Follows the encoder and the normalizer of https://github.com/google/sentencepiece (Kudo and
Richardson, arXiv:1808.06226).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from baton_tokenizer.vocabulary.formats.checkpoint_folder import entry

_SPACE = "▁"


class TokenType(IntEnum):
    """Token types, numbered as in sentencepiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece vocabulary and its text normalization."""

    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    unknown: int | None
    """Id of the unknown token; None if there is none."""
    prefix: Literal["none", "first", "always"] = "always"
    """Where a space is inserted: nowhere, at the start of the text, or also after every special
    token."""
    charsmap: bytes = b""
    """Compiled character replacements, empty for none. The tokenizers library, and so transformers,
    looks up a character with its combining marks at once, sentencepiece one by one."""
    squeezes: bool = False
    """Collapse runs of spaces, and strip them at both ends and before added tokens."""
    byte_fallback: bool = True
    """Characters without a token are encoded as bytes."""

    @property
    def added(self) -> list[dict[str, Any]]:
        """Tokens that are matched in text before merging."""
        kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
        return [
            entry(i, token, special=kind == TokenType.CONTROL)
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in kinds and token
        ]

    def bpe(self) -> dict[str, Any]:
        """A tokenizer.json of BPE that merges the pair with the best score."""
        has_unknown = self.unknown is not None and 0 <= self.unknown < len(self.tokens)
        model = {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(self.tokens)},
            "merges": scored_merges(self.tokens, self.types, self.scores),
            "unk_token": self.tokens[self.unknown]
            if has_unknown and self.unknown is not None
            else None,
            "byte_fallback": self.byte_fallback,
            "fuse_unk": True,
        }
        return self._spec(model, self.added)

    def unigram(self) -> dict[str, Any]:
        """A tokenizer.json of a unigram model, which picks the most probable segmentation."""
        added = self.added
        # Otherwise the library would match the name of the unknown token in text.
        if self.unknown is not None:
            added.append(entry(self.unknown, self.tokens[self.unknown], special=True))
        model = {
            "type": "Unigram",
            "vocab": list(zip(self.tokens, self._unigram_scores(), strict=True)),
            "unk_id": self.unknown,
            "byte_fallback": self.byte_fallback,
        }
        return self._spec(model, sorted(added, key=lambda token: token["id"]))

    def _unigram_scores(self) -> list[float]:
        """Scores; those of byte tokens are so low that their names never match text."""
        least = min((s for s, t in zip(self.scores, self.types, strict=True) if t == 1), default=0)
        never = len("<0x00>") * (least - 20.0)
        return [
            never if kind == TokenType.BYTE else score
            for score, kind in zip(self.scores, self.types, strict=True)
        ]

    def _spec(self, model: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": _first_space() if self.prefix == "first" else None,
            "post_processor": None,
            "model": model,
            **self.steps(),
        }

    def steps(self) -> dict[str, Any]:
        """Normalizer and decoder of a tokenizer.json."""
        return {
            "normalizer": {"type": "Sequence", "normalizers": self._normalizers()},
            "decoder": {"type": "Sequence", "decoders": self._decoders()},
        }

    def _normalizers(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = []
        if self.charsmap:
            map64 = base64.b64encode(self.charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": map64})
        first = self.prefix == "first"
        if self.squeezes:
            ends = r" +\z" if first else r"\A +| +\z"
            steps += [_replace({"Regex": ends}, ""), _replace({"Regex": " {2,}"}, " ")]
        if self.prefix == "always":
            steps.append({"type": "Prepend", "prepend": _SPACE})
        # Otherwise a leading space of the text would be confused with the inserted one.
        replaced = not (first and self.squeezes)
        return [*steps, _replace({"String": " "}, _SPACE)] if replaced else steps

    def _decoders(self) -> list[dict[str, Any]]:
        strip = {"type": "Strip", "content": " ", "start": int(self.prefix != "none"), "stop": 0}
        return [
            _replace({"String": _SPACE}, " "),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            strip,
        ]


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _first_space() -> dict[str, Any]:
    """A pre-tokenizer that inserts a space before a text, but not after an added token.

    A `Metaspace` for spaces detects where a text begins; the normalizer has removed the spaces that
    it could confuse with the inserted one. The second one writes spaces as pieces do.
    """
    first = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
    spaces_as_pieces = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "never",
        "split": False,
    }
    return {"type": "Sequence", "pretokenizers": [first, spaces_as_pieces]}


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
