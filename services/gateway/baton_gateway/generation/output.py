"""What the engine gives back: events of a generation."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Started:
    """First event: the request has been validated and handed to the scheduler."""

    prompts: tuple[array[int], ...]
    """int32 ids of each prompt."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token, and of the most probable ones in its place."""

    token: int
    logprob: float
    rank: int
    """1 is the most probable."""
    top: tuple[tuple[int, float], ...]


class OutputDelta(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one choice and the text that they made final. Made for every token of every
    stream, hence msgspec; it can be part of no cycle."""

    choice: int
    """prompt index * n + choice of that prompt"""
    text: str
    tokens: array[int]
    """int32"""
    ends: tuple[int, ...] = ()
    """Per token, how many characters of the choice's text exist once it is decoded."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Per token, or empty when none were asked for."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """Per prompt token, in the first delta of a choice that asked; the first entry is None."""
    reason: str | None = None
    """Why the choice has ended: "stop" or "length"; None while it runs."""
    stop: str | int | None = None
    """The stop string or stop id that ended it."""
    cached: int = 0
    """Prompt tokens of the choice that came from the prefix cache; the same in every delta."""
    vector: bytes | None = None
    """float32: what the prompt has come to, where a vector was wanted."""

    def then(self, later: OutputDelta) -> OutputDelta:
        """This delta and the next one of the same choice, as one."""
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
        )


Event = Started | OutputDelta
