"""Tokens of a vocabulary that may occur in and around thinking."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from baton.protocol import Thinking
from baton_worker.structured_output.matcher import Bits

SPACE = b" \n"
"""White space between thinking and what follows."""


class ThinkingTokens:
    """Token masks for the thinking of one request, each computed once."""

    def __init__(self, pieces: tuple[bytes, ...], thinking: Thinking) -> None:
        """`pieces`: bytes of every token; empty for those that are no text."""
        self.opener, self.closer = thinking.opener.encode(), thinking.closer.encode()
        self.opener_id, self.closer_id = thinking.opener_id, thinking.closer_id
        self.budget, self.opened = thinking.budget, thinking.opened
        self._pieces = pieces
        self._across: dict[bytes, Bits] = {}

    def piece(self, token: int) -> bytes:
        """Bytes of a token; a tag that is a token of its own has its text, special or not."""
        if token == self.closer_id:
            return self.closer
        if token == self.opener_id:
            return self.opener
        return self._pieces[token] if token < len(self._pieces) else b""

    @cached_property
    def everything(self) -> Bits:
        """All tokens."""
        return self._bits(range(len(self._pieces)))

    @cached_property
    def texts(self) -> Bits:
        """Tokens that are text, and the tags."""
        tags = (i for i in (self.opener_id, self.closer_id) if i >= 0)
        return self._bits([*tags, *(i for i, piece in enumerate(self._pieces) if piece)])

    def towards(self, tag: bytes, done: bytes, token: int) -> Bits:
        """Tokens that continue a tag whose first part `done` is written, and write nothing else.

        `token` is the token that is the tag, if one is; the tag is then written with it.
        """
        if token >= 0 and not done:
            return self._bits((token,))
        rest = tag[len(done) :]
        return self._bits(i for i, p in enumerate(self._pieces) if p and rest.startswith(p))

    def across(self, text: bytes) -> Bits:
        """Tokens that end the thinking behind `text` and have more text behind the closer."""
        partial_closer = self.partial_closer(text)
        if partial_closer not in self._across:
            tokens = (
                i for i in self._holders if self.closer in (partial_closer + self._pieces[i])[:-1]
            )
            self._across[partial_closer] = self._bits(tokens)
        return self._across[partial_closer]

    def partial_closer(self, text: bytes) -> bytes:
        """The longest beginning of the closer that a text ends with."""
        tag = self.closer
        return next(tag[:n] for n in range(len(tag) - 1, -1, -1) if text.endswith(tag[:n]))

    def blank(self, most: int) -> Bits:
        """Tokens of white space of at most `most` bytes."""
        return self._bits(i for i in self._blanks if len(self._pieces[i]) <= most)

    @cached_property
    def _holders(self) -> tuple[int, ...]:
        """Tokens with the last byte of the closer before their own last byte."""
        last = self.closer[-1:]
        return tuple(i for i, piece in enumerate(self._pieces) if last in piece[:-1])

    @cached_property
    def _blanks(self) -> tuple[int, ...]:
        return tuple(i for i, p in enumerate(self._pieces) if p and not p.strip(SPACE))

    def _bits(self, tokens: Iterable[int]) -> Bits:
        """One bit more than there are tokens, as grammar engines have for the end."""
        flags = np.zeros(len(self._pieces) + 1, np.uint8)
        flags[list(tokens)] = 1
        return np.packbits(flags, bitorder="little")
