"""Generation requests, independent of HTTP and of wire messages."""

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
from baton_gateway.observability.request_timeline import RequestTimeline
from baton_gateway.structured_output.request import Constraint


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's chat template. The fields are JSON."""

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
    """Two texts that the model joins into one sequence."""

    text: str
    pair: str


Prompt = ChatPrompt | TextPrompt | PairPrompt | MediaItem | tuple[int, ...]
"""A tuple holds token ids, already encoded by the client; a `MediaItem` stands by itself."""


class EncodedPrompt(NamedTuple):
    """An encoded prompt, ready for the scheduler."""

    ids: array[int]
    """int32"""
    second: int = 0
    """Offset of the second text of a pair, if the model separates the two; else 0."""
    media: tuple[Blob, ...] = ()
    """Tensors for the media placeholders among the ids."""


@dataclass(frozen=True, slots=True)
class BeamSearchOptions:
    """Beam search options of a request."""

    width: int
    """Number of beams."""
    length_penalty: float = 1.0
    """Exponent of the length: above 0 prefers longer outputs, below 0 shorter ones."""
    early_stopping: bool | Literal["never"] = False
    """When to stop once `width` outputs have ended: at once (True); when the best beam's current
    score (False) or best attainable score ("never") is not above the worst of them."""


@dataclass(slots=True)
class PriorOutput:
    """Earlier output of a choice that is continued."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    """int32"""
    length: int = 0
    """Length of its text in characters."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    ended: bool = False

    def add(self, delta: OutputDelta) -> None:
        """Append a delivered delta."""
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
    """Sampling parameters of all choices; the engine fills in `max_tokens` and `seed`."""
    seed: int
    """Unsigned 64-bit seed; choice i uses a seed derived from it and i."""
    max_tokens: int | None = None
    """Most tokens to generate; None means the rest of the context."""
    n: int = 1
    stops: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    constraint: Constraint | None = None
    """The grammar of `sampling` and the request field that contains it."""
    include_stop: bool = False
    skip_special: bool = True
    ignore_eos: bool = False
    param: str = "messages"
    """Request field that holds the prompt, for errors."""
    trace: str = ""
    """W3C traceparent of the client; empty if none was sent."""
    deadline_ms: int = 0
    """Milliseconds from receipt; 0 means no deadline."""
    priority: int = 0
    """Lower values run first under the priority policy."""
    tenant: str = ""
    """Billing tenant; cached prefixes are shared within it."""
    salt: bytes = b""
    """Prefix cache salt: within a tenant, only requests with the same salt share cached
    prefixes."""
    admission_notes: AdmissionHeaders = field(default_factory=AdmissionHeaders)
    """Receives the scheduler's queue estimate for the first choice."""
    prior_outputs: tuple[PriorOutput, ...] = ()
    """Per choice, the output to continue; empty for a new request."""
    quota: RequestQuota = field(default_factory=lambda: RateLimiter().quota(ApiKey()))
    """Rate limits and quota of the API key."""
    timeline: RequestTimeline = field(default_factory=RequestTimeline)
    """Records the time spent per cause."""
    beams: BeamSearchOptions | None = None
    """Beam search options; the `n` choices are then its best outputs instead of samples."""
    direct_sink: DirectSink = field(default_factory=DirectSink)
    """Writes deltas directly when the reader is idle."""
    model: str | None = None
    """Name of the model; None means the only one."""
    pooling: Pooling | None = None
    """Pooling parameters; the request then returns one vector per prompt, with `n` = 1."""
