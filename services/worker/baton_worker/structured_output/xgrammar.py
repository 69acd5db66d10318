"""xgrammar as a grammar engine: masks prepared for the whole vocabulary, once per grammar.

https://arxiv.org/abs/2411.15100. The package is optional; see `baton.structured_output.xgrammar`
for what it keeps of JSON Schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.protocol import Grammar
from baton.structured_output.engines import require
from baton_worker.structured_output.matcher import Matcher
from baton_worker.structured_output.thinking import compile_thinking
from baton_worker.structured_output.vocabulary import Vocabulary

require("xgrammar")

import xgrammar as xgr  # noqa: E402

from baton.structured_output.xgrammar import compiled  # noqa: E402


class XGrammar:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # As in `guidance`: the token that ends an output is one that no model has.
        self._end = len(vocabulary.pieces)
        pieces = [*vocabulary.pieces, b"<end>"]
        info = xgr.TokenizerInfo(pieces, vocab_size=len(pieces), stop_token_ids=self._end)
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)

        self._pieces = vocabulary.pieces

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""
        return compile_thinking(grammar, self._pieces, self._compile)

    def _compile(self, grammar: Grammar) -> XGrammarMatcher:
        return XGrammarMatcher(xgr.GrammarMatcher(compiled(self._compiler, grammar)), self._end)


class XGrammarMatcher:
    """State of one output in its grammar."""

    def __init__(self, matcher: xgr.GrammarMatcher, end: int, error: str = "") -> None:
        self._matcher, self._end, self._error = matcher, end, error

    def copy(self) -> XGrammarMatcher:
        """An independent copy."""
        return XGrammarMatcher(self._matcher.fork(), self._end, self._error)

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
        for token in tokens:
            if self._error or not self._matcher.accept_token(token):
                self._error = self._error or f"token {token} cannot follow"
                return False
        return True

    def back(self) -> None:
        """Take back the last token."""
        self._matcher.rollback(1)

    def forced(self) -> bytes:
        """The known part of the bytes that must follow; empty if the output may end."""
        if self._error or self.may_end:
            return b""
        try:
            return str(self._matcher.find_jump_forward_string()).encode()
        except UnicodeDecodeError:  # Known up to the middle of a character: it gives text only.
            return b""

    def allowed(self) -> npt.NDArray[np.uint8]:
        """One bit per token, the least significant first; nothing is allowed after an error."""
        words = xgr.allocate_token_bitmask(1, self._end + 1)
        self._matcher.fill_next_token_bitmask(words)
        bits = words.numpy().view(np.uint8)[0]
        bits[self._end >> 3] &= ~(1 << (self._end & 7)) & 0xFF
        bits[(self._end >> 3) + 1 :] = 0
        return np.zeros_like(bits) if self._error else bits
