"""Encodes bad words as the token sequences that the worker bans."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from baton_gateway.generation.request import TextPrompt
from baton_gateway.http.errors import invalid

MAX_WORDS = 128
MAX_TOKENS = 16
"""Most tokens of one bad word."""


class Encoder(Protocol):
    """The part of `TokenizerClient` that encodes bad words."""

    async def encode(self, prompt: TextPrompt, limit: int) -> Sequence[int]:
        """Return the ids of a text; more than `limit` ids mean that the text is longer."""


async def encode_bad_words(words: tuple[str, ...], encoder: Encoder) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences of every word, with and without a leading space.

    Only these spellings are banned; a model that spells a word letter by letter can still produce
    it. Raises `InvalidRequest` for a word of more than `MAX_TOKENS` tokens.
    """
    spellings = [s for word in words for s in (word, " " + word.lstrip(" "))]
    texts = [TextPrompt(text, add_special=False) for text in dict.fromkeys(spellings)]
    encoded = await asyncio.gather(*(encoder.encode(text, MAX_TOKENS) for text in texts))
    for text, ids in zip(texts, encoded, strict=True):
        if len(ids) > MAX_TOKENS:
            raise invalid(
                "bad_words",
                f"Invalid 'bad_words': '{text.text.strip()[:40]}' has more than {MAX_TOKENS} "
                "tokens.",
                "string_above_max_length",
            )
    return tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
