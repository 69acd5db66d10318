"""Events that the engine yields for a generation."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import msgspec

from baton.output_parsing import Start
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.pieces import Pieces, merge


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the request is valid and was submitted to the scheduler."""

    prompts: tuple[PackedTokens, ...]
    """int32 ids of each prompt."""
    starts: tuple[Start, ...] = ()
    """Per prompt, the part in which its output begins."""
    prediction: bytes = b""
    """int32 ids of the expected output."""
    adapter: bytes = b""
    """Digest of the adapter that is applied to the model; empty for none."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token and of the most probable alternatives at its position."""

    token: int
    logprob: float
    rank: int
    """1-based; 1 is the most probable."""
    top: tuple[tuple[int, float], ...]


class OutputDelta(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one choice and the text that they completed.

    Created for every token of every stream, hence msgspec; it takes part in no reference cycle.
    """

    choice: int
    """prompt index * n + choice of that prompt"""
    text: str
    """Raw text of the tokens."""
    tokens: array[int]
    """int32"""
    ends: tuple[int, ...] = ()
    """Per token, length of the choice's text in characters once the token is decoded."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Per token; empty when not requested."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Per prompt token, in the first delta of a choice that requested them; the first entry is
    None."""
    reason: str | None = None
    """Finish reason, "stop" or "length"; None while the choice runs."""
    stop: str | int | None = None
    """The stop string or stop id that ended the choice."""
    cached: int = 0
    """Prompt tokens of the choice that came from the prefix cache; the same in every delta."""
    vector: bytes | None = None
    """float32 vector of the prompt, for pooling requests."""
    pieces: Pieces = ()
    """Content, thinking and tool calls in the text; see `Sequence.deliver`."""
    reasoning_tokens: int = 0
    """Number of tokens of the model's thinking."""

    def then(self, later: OutputDelta) -> OutputDelta:
        """Merge this delta with the next one of the same choice."""
        return OutputDelta(
            choice=self.choice,
            text=self.text + later.text,
            tokens=self.tokens + later.tokens,
            ends=self.ends + later.ends,
            logprobs=self.logprobs + later.logprobs,
            prompt_logprobs=self.prompt_logprobs or later.prompt_logprobs,
            reason=later.reason,
            stop=later.stop,
            cached=later.cached,
            pieces=merge(self.pieces, later.pieces),
            reasoning_tokens=self.reasoning_tokens + later.reasoning_tokens,
        )


Event = Started | OutputDelta
