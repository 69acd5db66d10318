"""llguidance as a grammar engine: masks computed token by token, nothing prepared per grammar.

https://github.com/guidance-ai/llguidance. Its compilation is short and its work per step bounded,
so it needs no process of its own here: `baton_gateway.structured_output.validator` has tried the
same text before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.protocol import Grammar
from baton.structured_output.llguidance import GrammarError, limits, plain, translate
from baton_worker.structured_output.matcher import Matcher
from baton_worker.structured_output.thinking import compile_thinking
from baton_worker.structured_output.vocabulary import Vocabulary


class Guidance:
    """Compiles grammars for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))
        self._pieces = vocabulary.pieces

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""
        return compile_thinking(grammar, self._pieces, self._compile)

    def _compile(self, grammar: Grammar) -> GuidanceMatcher:
        text = translate(grammar)
        allowed = limits(grammar.kind)
        matcher = GuidanceMatcher(LLMatcher(self._tokenizer, text, limits=allowed, log_level=0))
        if why := matcher.error:
            raise GrammarError(why)
        return matcher


class GuidanceMatcher:
    """State of one output in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def copy(self) -> GuidanceMatcher:
        """An independent copy."""
        return GuidanceMatcher(self._matcher.deep_copy())

    @property
    def error(self) -> str:
        """Why no token can follow; empty if one can."""
        return plain(self._matcher.get_error()) if self._matcher.is_error() else ""

    @property
    def may_end(self) -> bool:
        """True if the output so far is complete."""
        return bool(self._matcher.is_accepting())

    @property
    def over(self) -> bool:
        """True if the output is complete and no token can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advance by these tokens. False if the grammar does not allow them."""
        return bool(self._matcher.consume_tokens(list(tokens)))

    def back(self) -> None:
        """Take back the last token."""
        self._matcher.rollback(1)

    def forced(self) -> bytes:
        """The known part of the bytes that must follow; empty if the output may end."""
        return b"" if self.may_end else bytes(self._matcher.compute_ff_bytes())

    def allowed(self) -> npt.NDArray[np.uint8]:
        """One bit per token, the least significant first; nothing is allowed after an error."""
        bits: npt.NDArray[np.uint8] = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.zeros_like(bits) if self._matcher.is_error() else bits


class _Tokens:
    """A vocabulary in the interface of llguidance.

    Its end-of-sequence token is one that no model has, the one behind the last: every request has
    end ids of its own, so they are no part of the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.pieces, b"<end>"]
        self.eos_token_id, self.bos_token_id = len(vocabulary.pieces), None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        # Called for the tokens of text that a grammar forces, and our grammars force none.
        return []
