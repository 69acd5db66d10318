"""One choice of an answer, collected from its deltas."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from baton.output_parsing import Content, Piece
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob


@dataclass(slots=True)
class Choice:
    """A choice, whole or as far as its deltas have come."""

    text: str = ""
    """Text of the tokens, as the tokenizer gave it."""
    pieces: list[Piece] = field(default_factory=list)
    """What the text is."""
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
    """How many of the tokens are the model's thinking."""

    @property
    def content(self) -> str:
        """The text of the answer itself."""
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
"""A whole answer: all choices of all prompts."""
