"""Bad words: what a client must not read, as the token sequences that would say it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from baton_gateway.generation.request import TextPrompt
from baton_gateway.http.errors import invalid

MAX_WORDS = 128
MAX_TOKENS = 16
"""Longest word in tokens."""


class Encoder(Protocol):
    """What is needed of `TokenizerClient`."""

    async def encode(self, prompt: TextPrompt, limit: int) -> Sequence[int]:
        """Ids of a text; more than `limit` of them mean that it is longer than that."""


async def encode_bad_words(words: tuple[str, ...], encoder: Encoder) -> tuple[tuple[int, ...], ...]:
    """Token sequences of every word, at the beginning of a text and after a space.

    Only these spellings are recognised: a model that spells a word letter by letter can say it.
    Raises `InvalidRequest` for a word of more than `MAX_TOKENS` tokens.
    """
    spellings = [s for word in words for s in (word, " " + word.lstrip(" "))]
    texts = [TextPrompt(text, add_special=False) for text in dict.fromkeys(spellings)]
    found = await asyncio.gather(*(encoder.encode(text, MAX_TOKENS) for text in texts))
    for text, ids in zip(texts, found, strict=True):
        if len(ids) > MAX_TOKENS:
            raise invalid(
                "bad_words",
                f"Invalid 'bad_words': '{text.text.strip()[:40]}' has more than {MAX_TOKENS} "
                "tokens.",
                "string_above_max_length",
            )
    return tuple(dict.fromkeys(tuple(ids) for ids in found if ids))
