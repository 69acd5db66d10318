"""One choice of an answer, collected from its deltas."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from baton.output_parsing import Content, Piece
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob


@dataclass(slots=True)
class Choice:
    """A choice, complete or as far as it was generated."""

    text: str = ""
    """Raw text of the tokens."""
    pieces: list[Piece] = field(default_factory=list)
    """Content, thinking and tool calls in the text."""
    tokens: array[int] = field(default_factory=lambda: array("i"))
    """int32"""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    reason: str | None = None
    stop: str | int | None = None
    starts: list[int] = field(default_factory=list)
    """Per token, offset of its text."""
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    vector: bytes | None = None
    """float32 vector, for pooling requests."""

    reasoning_tokens: int = 0
    """Number of tokens of the model's thinking."""

    @property
    def content(self) -> str:
        """The text without thinking and tool calls."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Content))

    @classmethod
    def of(cls, delta: OutputDelta, length: int) -> Choice:
        """Convert one delta, `length` characters into its choice's text."""
        part = cls()
        part.add(delta)
        part.starts = [length, *delta.ends][: len(delta.tokens)]
        return part

    def add(self, delta: OutputDelta) -> None:
        """Append a delta."""
        self.starts += [len(self.text), *delta.ends][: len(delta.tokens)]
        self.text += delta.text
        self.pieces += delta.pieces
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.reason, self.stop = delta.reason, delta.stop
        self.reasoning_tokens += delta.reasoning_tokens
        self.cached = delta.cached
        self.vector = delta.vector


Answer = tuple[Started, list[Choice]]
"""A complete answer: all choices of all prompts."""
