"""What the engine is asked to do, in terms of neither HTTP nor the wire."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from baton.protocol import Sampling
from baton_gateway.schemas.constraints import Constraint


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, to be rendered by the model's template. The fields are JSON."""

    messages: bytes
    tools: bytes = b""
    kwargs: bytes = b""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text."""

    text: str
    add_special: bool = True


Prompt = ChatPrompt | TextPrompt | tuple[int, ...]
"""A tuple holds token ids, already encoded by the client."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One request: every prompt is continued `n` times."""

    id: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    """Common to all choices, except that `max_tokens` and `seed` are filled in by the engine."""
    seed: int
    """Unsigned 64 bits; choice i samples from a seed derived from it and i."""
    max_tokens: int | None = None
    """None means as many as the context has room for."""
    n: int = 1
    stops: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    constraint: Constraint | None = None
    """The grammar of `sampling`, and where the client has written it."""
    include_stop: bool = False
    skip_special: bool = True
    ignore_eos: bool = False
    param: str = "messages"
    """Request field that holds the prompt, for errors."""
    trace: str = ""
    """W3C traceparent of the client, or empty."""
    deadline_ms: int = 0
    """Milliseconds that the client gives it; 0 means no deadline."""
    priority: int = 0
    """Lower runs first, under an order that looks at it."""
    tenant: str = ""
    """Who pays, and with whom cached prefixes are shared."""


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


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice and the text that they made final."""

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

    def then(self, later: Delta) -> Delta:
        """This delta and the next one of the same choice, as one."""
        return Delta(
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


Event = Started | Delta
