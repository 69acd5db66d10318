"""Bytes of each token of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baton.checkpoint.byte_tokens import byte_fallback, byte_level
from baton.errors import ModelError

_MARKS = frozenset((".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"))
"""Tokens before which the tokenizers library's WordPiece decoder writes no space."""


@dataclass(frozen=True)
class Spelling:
    """Rule that converts token strings to bytes, read from the decoder of a tokenizer.json."""

    byte_level: bool = False
    """Each character of a token is one byte (GPT-2 alphabet)."""
    space: str = ""
    """Character that stands for a space, "▁" in SentencePiece vocabularies."""
    byte_tokens: bool = False
    """Tokens like "<0x0A>" are single bytes."""
    drops_space: bool = False
    """The decoder removes a space at the beginning of a text."""
    continuation: str = ""
    """Prefix of tokens that continue a word, "##" in WordPiece vocabularies; other tokens start
    with a space."""
    tidy: bool = False
    """There is no space before marks such as a full stop."""

    def spell(self, token: str) -> bytes:
        """The bytes of one token."""
        if self.byte_level:
            return byte_level(token)
        if self.byte_tokens and (byte := byte_fallback(token)) is not None:
            return byte
        if self.continuation:
            return self._word(token).encode()
        return (token.replace(self.space, " ") if self.space else token).encode()

    def _word(self, token: str) -> str:
        if token.startswith(self.continuation):
            return token.removeprefix(self.continuation)
        return token if self.tidy and token in _MARKS else f" {token}"


def spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """Read the `decoder` of a tokenizer.json. Raises `ModelError` if it cannot decode
    incrementally."""
    steps = _flatten(decoder)
    rule: dict[str, Any] = {}
    for step in steps:
        rule |= _step(step)
    if not steps:
        raise ModelError("tokenizer.json has no decoder: ids cannot be turned into text.")
    return Spelling(**rule)


def _flatten(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _flatten(inner)]
    return [decoder]


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    match step:
        case {"type": "ByteLevel"}:
            return {"byte_level": True}
        case {"type": "ByteFallback"}:
            return {"byte_tokens": True}
        case {"type": "Fuse"}:
            return {}
        case {"type": "Replace", "pattern": {"String": space}, "content": " "}:
            return {"space": space}
        case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
            return {"drops_space": start == 1}
        case {"type": "WordPiece", "prefix": str() as prefix}:
            tidy = step.get("cleanup", True)
            return {"continuation": prefix, "tidy": tidy, "drops_space": True}
        case {"type": "Metaspace", "replacement": space}:
            scheme = step.get("prepend_scheme", "always")
            return {"space": space, "drops_space": scheme != "never"}
        case _:
            raise ModelError(
                f"The tokenizer's decoder step {step.get('type')} cannot be streamed. Supported: "
                "ByteLevel, Metaspace, WordPiece, ByteFallback, Fuse, Replace and Strip of one "
                "space."
            )
