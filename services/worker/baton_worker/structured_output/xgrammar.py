"""xgrammar as a grammar engine: masks prepared for the whole vocabulary, once per grammar.

https://arxiv.org/abs/2411.15100. The package is optional; see `baton.structured_output.xgrammar`
for what it keeps of JSON Schema.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from baton.protocol import Grammar
from baton.structured_output.engines import require
from baton_worker.structured_output.jump_forward import MOST
from baton_worker.structured_output.matcher import Matcher
from baton_worker.structured_output.thinking import compile_thinking
from baton_worker.structured_output.vocabulary import Vocabulary

require("xgrammar")

import xgrammar as xgr  # noqa: E402

from baton.structured_output.xgrammar import Bytes, compiled, only_byte  # noqa: E402

_BURST_SECONDS, _TOKEN_SECONDS = 5.0, 0.02
"""Processor time that one output may take, and what each of its tokens adds. A step costs
microseconds, but an ambiguous grammar has more states with every token and no bound of its own."""


class XGrammar:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # As in `guidance`: the token that ends an output is one that no model has.
        self._end = len(vocabulary.pieces)
        pieces = [*vocabulary.pieces, b"<end>"]
        info = xgr.TokenizerInfo(pieces, vocab_size=len(pieces), stop_token_ids=self._end)
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bytes = Bytes()
        self._pieces = vocabulary.pieces

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""
        return compile_thinking(grammar, self._pieces, self._compile)

    def _compile(self, grammar: Grammar) -> XGrammarMatcher:
        tokens = xgr.GrammarMatcher(compiled(self._compiler, grammar))
        text = xgr.GrammarMatcher(compiled(self._bytes.compiler, grammar))
        return XGrammarMatcher(tokens, text, self._pieces)


class XGrammarMatcher:
    """State of one output in its grammar, over tokens and over bytes.

    xgrammar follows forced text to its end, which some text does not have; over bytes one can stop.
    """

    def __init__(
        self,
        matcher: xgr.GrammarMatcher,
        text: xgr.GrammarMatcher,
        pieces: Sequence[bytes],
        error: str = "",
        seconds: float = _BURST_SECONDS,
    ) -> None:
        """
        Args:
            text: the same over bytes.
            pieces: bytes of each token.
            seconds: processor time that is left.
        """
        self._matcher, self._text, self._pieces = matcher, text, pieces
        self._end, self._error, self._seconds = len(pieces), error, seconds
        self._size = 0
        """Bytes of the last token."""

    def copy(self) -> XGrammarMatcher:
        """An independent copy."""
        forks = self._matcher.fork(), self._text.fork()
        return XGrammarMatcher(*forks, self._pieces, self._error, self._seconds)

    @property
    def error(self) -> str:
        """Why no token can follow; empty if one can."""
        return self._error

    @property
    def may_end(self) -> bool:
        """True if the output so far is complete."""
        return not self._error and bool(self._matcher.is_completed())

    @property
    def over(self) -> bool:
        """True if the output is complete and no token can follow."""
        return self.may_end and not self.allowed().any()

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance by these tokens. False if the grammar does not allow them."""
        with self._measured():
            for token in tokens:
                if self._error or not self._matcher.accept_token(token):
                    self._error = self._error or f"token {token} cannot follow"
                    return False
                piece = self._pieces[token]
                for byte in piece:
                    self._text.accept_token(byte)
                self._size = len(piece)
                self._seconds += _TOKEN_SECONDS
        return not self._error

    def back(self) -> None:
        """Take back the last token; none before it."""
        self._matcher.rollback(1)
        self._text.rollback(self._size)

    def forced(self) -> bytes:
        """The beginning of the bytes that must follow, up to `MOST`; empty if the output may
        end."""
        known = bytearray()
        with self._measured():
            text = self._text.fork()
            while len(known) < MOST and not self._error and not text.is_completed():
                byte = only_byte(text)
                if byte < 0 or not text.accept_token(byte):
                    break
                known.append(byte)
        return bytes(known)

    def allowed(self) -> npt.NDArray[np.uint8]:
        """One bit per token, the least significant first; nothing is allowed after an error."""
        words = xgr.allocate_token_bitmask(1, self._end + 1)
        with self._measured():
            if not self._error:
                self._matcher.fill_next_token_bitmask(words)
        bits = words.numpy().view(np.uint8)[0]
        bits[self._end >> 3] &= ~(1 << (self._end & 7)) & 0xFF
        bits[(self._end >> 3) + 1 :] = 0
        return np.zeros_like(bits) if self._error else bits

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Count processor time. Where none is left, the output fails."""
        begin = time.thread_time()
        yield
        self._seconds -= time.thread_time() - begin
        if self._seconds < 0 and not self._error:
            self._error = "it takes too long per token: make it less ambiguous"
