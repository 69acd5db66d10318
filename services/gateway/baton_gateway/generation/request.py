"""What the engine is asked to do, in terms of neither HTTP nor the wire."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from baton.protocol import Blob, MediaItem, Pooling, Sampling
from baton_gateway.access.api_keys import ApiKey
from baton_gateway.access.rate_limits import RateLimiter, RequestQuota
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.output_queue import DirectSink
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.observability.latency import RequestTimeline
from baton_gateway.structured_output.request import Constraint


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


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """Two texts as one sequence, as the model joins them."""

    text: str
    pair: str


Prompt = ChatPrompt | TextPrompt | PairPrompt | MediaItem | tuple[int, ...]
"""A tuple holds token ids, already encoded by the client; a `MediaItem` stands by itself."""


class EncodedPrompt(NamedTuple):
    """A prompt as the scheduler is given it."""

    ids: array[int]
    """int32"""
    second: int = 0
    """Where the second text of a pair begins, if the model tells the two apart."""
    media: tuple[Blob, ...] = ()
    """What placeholders among the ids stand for."""


@dataclass(frozen=True, slots=True)
class BeamSearchOptions:
    """What a client wants of a beam search."""

    width: int
    """Hypotheses that are followed at a time."""
    length_penalty: float = 1.0
    """Above 0, longer outputs are preferred; below, shorter ones."""
    early_stopping: bool | Literal["never"] = False
    """When to stop once `width` outputs have ended: at once (True); when the best beam's score, as
    it is (False) or as it could become at most ("never"), does not reach the worst of them."""


@dataclass(slots=True)
class PriorOutput:
    """What a choice has produced before: it is continued from there."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    """int32"""
    length: int = 0
    """Characters of its text."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    ended: bool = False

    def add(self, delta: OutputDelta) -> None:
        """Append what has been delivered."""
        self.tokens += delta.tokens
        self.length += len(delta.text)
        self.logprobs += delta.logprobs
        self.cached = delta.cached
        self.ended = delta.reason is not None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
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
    salt: bytes = b""
    """Of the tenant's requests, only those of the same salt share cached prefixes."""
    admission_notes: AdmissionHeaders = field(default_factory=AdmissionHeaders)
    """Where the scheduler's words on the first choice are written down."""
    prior_outputs: tuple[PriorOutput, ...] = ()
    """Per choice, where it goes on; empty for a request that begins."""
    quota: RequestQuota = field(default_factory=lambda: RateLimiter().quota(ApiKey()))
    """What its key may use."""
    timeline: RequestTimeline = field(default_factory=RequestTimeline)
    """Where its time is written down."""
    beams: BeamSearchOptions | None = None
    """The `n` choices are the best outputs of a beam search instead of samples."""
    direct_sink: DirectSink = field(default_factory=DirectSink)
    """Where its deltas can be written past its reader."""
    pooling: Pooling | None = None
    """Not text but a vector of every prompt is wanted; `n` is 1 then, and nothing is sampled."""
