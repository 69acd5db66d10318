"""Thinking before constrained output: the constraint begins where the thinking ends.

    opening --opener--> thinking --closer--> gap --first other token--> body
       |                    |                 ^
       |                    +--budget--> closing
       +--anything else--> body

The state is a function of (grammar, token log), as that of every matcher: so the budget is exact,
and a sequence that resumes elsewhere repeats it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import structs

from baton.protocol import Grammar
from baton_worker.structured_output.matcher import Bits, Matcher
from baton_worker.structured_output.thinking_tokens import SPACE, ThinkingTokens

_GAP = 4
"""Most bytes of white space between the closer and what is constrained."""
_REMEMBERED = 64
"""Most tokens that can be taken back."""


class _State(NamedTuple):
    """Where an output stands."""

    phase: Literal["opening", "thinking", "closing", "gap", "body"]
    text: bytes = b""
    """opening, closing: of the tag so far. thinking: the end of it. gap: white space."""
    num_tokens: int = 0
    """Tokens of thinking so far."""


class ThinkingMatcher:
    """A matcher of thinking, and of what comes behind it."""

    def __init__(
        self, tokens: ThinkingTokens, body: Matcher | None, states: tuple[_State, ...] = ()
    ) -> None:
        """
        Args:
            body: matcher of the rest, at its beginning; None: the rest is any text.
            states: the latest states, one per token; empty at the beginning of an output.
        """
        self._tokens, self._body = tokens, body
        begin = _State("thinking" if tokens.opened else "opening")
        self._states = list(states) or [self._settled(begin)]
        self._error = ""

    @property
    def error(self) -> str:
        """See `Matcher`."""
        return self._error or (self._body.error if self._body else "")

    @property
    def may_end(self) -> bool:
        """See `Matcher`. Without a constraint an output may end in the middle of its thinking."""
        if self._body is None:
            return self._state.phase != "closing"
        in_opener = self._state.phase == "opening" and self._state.text
        return (
            self._state.phase in ("body", "gap", "opening") and not in_opener and self._body.may_end
        )

    @property
    def over(self) -> bool:
        """See `Matcher`."""
        return self._body is not None and self._state.phase == "body" and self._body.over

    def copy(self) -> ThinkingMatcher:
        """See `Matcher`."""
        body = self._body.copy() if self._body else None
        return ThinkingMatcher(self._tokens, body, tuple(self._states))

    def accept(self, tokens: Sequence[int]) -> bool:
        """See `Matcher`."""
        return all(self._accept(token) for token in tokens)

    def back(self) -> None:
        """See `Matcher`."""
        if self._states.pop().phase == "body" and self._body is not None:
            self._body.back()

    def forced(self) -> bytes:
        """See `Matcher`."""
        state, tokens = self._state, self._tokens
        if state.phase == "closing":
            whole = tokens.closer_id >= 0 and not state.text
            return b"" if whole else tokens.closer[len(state.text) :]
        return self._body.forced() if state.phase == "body" and self._body is not None else b""

    def allowed(self) -> Bits:
        """See `Matcher`."""
        state, tokens, body = self._state, self._tokens, self._body
        if state.phase == "closing":
            return tokens.towards(tokens.closer, state.text, tokens.closer_id)
        if body is None:
            return tokens.everything
        match state.phase:
            case "thinking":
                return tokens.texts & ~tokens.across(state.text)
            case "opening":
                opener = tokens.towards(tokens.opener, state.text, tokens.opener_id)
                return opener if state.text else _either(opener, body.allowed())
            case "gap":
                return _either(tokens.blank(_GAP - len(state.text)), body.allowed())
        return body.allowed()

    @property
    def _state(self) -> _State:
        return self._states[-1]

    def _accept(self, token: int) -> bool:
        new = self._after(token, self._tokens.piece(token))
        if new is None:
            self._error = self.error or "a token is not allowed in or behind the thinking"
            return False
        self._states.append(self._settled(new))
        del self._states[:-_REMEMBERED]
        return True

    def _after(self, token: int, piece: bytes) -> _State | None:
        """The state after one more token; None where it is not allowed."""
        match self._state.phase:
            case "opening":
                return self._opened(token, piece)
            case "thinking":
                return self._thought(piece)
            case "closing":
                return self._closed(piece)
            case "gap":
                space = bool(piece) and not piece.strip(SPACE)
                text = self._state.text + piece
                if space and len(text) <= _GAP and not self._takes(token):
                    return _State("gap", text)
        return self._in_body(token)

    def _opened(self, token: int, piece: bytes) -> _State | None:
        """After a token at the beginning of an output whose prompt has opened nothing."""
        opener, text = self._tokens.opener, self._state.text + piece
        if piece and opener.startswith(text):
            return _State("thinking") if text == opener else _State("opening", text)
        if self._body is None and piece and text.startswith(opener):
            return _State("thinking", text[len(opener) :])
        return None if self._state.text and self._body is not None else self._in_body(token)

    def _thought(self, piece: bytes) -> _State | None:
        """After a token of thinking."""
        closer, text = self._tokens.closer, self._state.text + piece
        if closer not in text:
            return _State("thinking", text[-len(closer) + 1 :], self._state.num_tokens + 1)
        if not text.partition(closer)[2]:
            return _State("gap")
        return _State("body") if self._body is None else None

    def _closed(self, piece: bytes) -> _State | None:
        """After a token of the closer that the budget demands."""
        text = self._state.text + piece
        if text == self._tokens.closer:
            return _State("gap")
        return _State("closing", text) if piece and self._tokens.closer.startswith(text) else None

    def _in_body(self, token: int) -> _State | None:
        return _State("body") if self._body is None or self._body.accept((token,)) else None

    def _takes(self, token: int) -> bool:
        """Whether the constraint allows white space itself."""
        if self._body is None:
            return True
        bits = self._body.allowed()
        return bool(bits[token >> 3] >> (token & 7) & 1)

    def _settled(self, state: _State) -> _State:
        """Thinking whose budget is spent is to be closed."""
        if state.phase == "thinking" and 0 <= self._tokens.budget <= state.num_tokens:
            return _State("closing", self._tokens.partial_closer(state.text))
        return state


def compile_thinking(
    grammar: Grammar, pieces: tuple[bytes, ...], compile_body: Callable[[Grammar], Matcher]
) -> Matcher:
    """Return the matcher of a grammar, with the thinking before it.

    Args:
        compile_body: compiles a grammar without thinking. Raises `GrammarError`.
    """
    if grammar.thinking is None:
        return compile_body(grammar)
    free = grammar.kind == "text"
    body = None if free else compile_body(structs.replace(grammar, thinking=None))
    return ThinkingMatcher(ThinkingTokens(pieces, grammar.thinking), body)


def _either(first: Bits, second: Bits) -> Bits:
    size = max(len(first), len(second))
    return np.pad(first, (0, size - len(first))) | np.pad(second, (0, size - len(second)))
