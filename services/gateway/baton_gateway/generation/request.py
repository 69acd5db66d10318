"""Generation requests, independent of HTTP and of wire messages."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from baton.protocol import Media, MediaItem, Pooling, PreparedMedia, Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.access.api_keys import ApiKey
from baton_gateway.access.rate_limits import RateLimiter, RequestQuota
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.observability.request_timeline import RequestTimeline
from baton_gateway.output_formats import ToolOptions
from baton_gateway.structured_output.request import Constraint


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the model's chat template. The first fields are JSON."""

    messages: bytes
    """An image part of a message is an object of type "image"."""
    tools: bytes = b""
    kwargs: bytes = b""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    media: tuple[MediaItem, ...] = ()
    """The images among the parts, in order."""
    keep: int = 0
    """Most tokens of the rendered conversation, whose end is cut off; 0: all."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text."""

    text: str
    add_special: bool = True
    keep: int = 0
    """Most tokens of the prompt, whose end is cut off; 0: all."""


@dataclass(frozen=True, slots=True)
class PairPrompt:
    """A query and a document that the model joins into one sequence."""

    query: str | Sequence[Mapping[str, Any]]
    """A text, or content parts, in which an image is an object of type "image"."""
    document: str | Sequence[Mapping[str, Any]]
    """As `query`."""
    media: tuple[MediaItem, ...] = ()
    """The images among the parts, in the order in which the model reads them."""
    keep: int = 0
    """As `TextPrompt.keep`; the longer text is cut first."""


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """A prompt of a speech-to-text model for one chunk of a recording."""

    prompt: tuple[int, ...] | ChatPrompt
    """Special tokens and the previous text, all of which attend to the recording; or a conversation
    that contains it."""
    media: PreparedMedia
    num_states: int = 0
    """Number of encoder states that hold audio, if token positions are requested; see
    `Pooling.num_states`."""


Prompt = ChatPrompt | TextPrompt | PairPrompt | SpeechPrompt | MediaItem | tuple[int, ...]
"""A tuple is ids encoded by the client; a `MediaItem` is a prompt of one item."""


class EncodedPrompt(NamedTuple):
    """An encoded prompt, ready for the scheduler."""

    ids: PackedTokens
    second: int = 0
    """Offset of the second text of a pair, if the model separates the two; else 0."""
    tail: str = ""
    """End of the text of a rendered conversation."""
    media: tuple[Media, ...] = ()
    """The media among the ids."""
    num_states: int = 0
    """See `SpeechPrompt`."""


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
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    ended: bool = False

    @property
    def length(self) -> int:
        """Length of its text in characters."""
        return len(self.text)

    def add(self, delta: OutputDelta) -> None:
        """Append a delivered delta."""
        self.tokens += delta.tokens
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.cached = delta.cached
        self.ended = delta.reason is not None


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling parameters of all choices of a request."""

    params: Sampling
    """Parameters of all choices; the engine fills in `max_tokens`, `seed` and the model's stop
    ids."""
    seed: int = 0
    """Unsigned 64-bit seed; choice i uses a seed derived from it and i."""
    n: int = 1
    """Number of choices per prompt."""
    ignore_eos: bool = False
    """The model's stop ids do not end a choice."""
    bad_words: tuple[str, ...] = ()
    constraint: Constraint | None = None
    """The grammar of `params` and the request field that contains it."""
    beams: BeamSearchOptions | None = None
    """Beam search options; the `n` choices are then its best outputs instead of samples."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Decoding of output tokens to text, and the stop strings that end it."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request."""

    max_tokens: int | None = None
    """Most tokens to generate; None means the rest of the context."""
    deadline_ms: int = 0
    """Milliseconds from receipt; 0 means no deadline."""
    priority: int = 0
    """Lower values run first under the priority policy."""
    truncate_prompt_tokens: int | None = None
    """Number of last tokens of each prompt that are used; -1 for as many as fit, None for all."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Identity of a request: its ids, and who is charged."""

    id: str
    trace: str = ""
    """W3C traceparent of the client; empty if none was sent."""
    tenant: str = ""
    """Billing tenant; cached prefixes are shared within it."""
    salt: bytes = b""
    """Prefix cache salt: within a tenant, only requests with the same salt share cached
    prefixes."""
    quota: RequestQuota = field(default_factory=lambda: RateLimiter().quota(ApiKey()))
    """Rate limits and quota of the API key."""

    @property
    def owner(self) -> str:
        """Tenant whose stored objects the request may read."""
        return self.quota.key.tenant


@dataclass(frozen=True, slots=True)
class RequestSinks:
    """Receivers of a request's progress, besides the caller."""

    admission_headers: AdmissionHeaders = field(default_factory=AdmissionHeaders)
    """Receives the scheduler's queue estimate for the first choice."""
    timeline: RequestTimeline = field(default_factory=RequestTimeline)
    """Records the time spent per cause."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request: every prompt is continued `sampling.n` times."""

    identity: RequestIdentity
    prompts: tuple[Prompt, ...]
    sampling: SamplingOptions
    model: str | None = None
    """Name of the model; None means the only one."""
    param: str = "messages"
    """Request field that holds the prompt, for errors."""
    pooling: Pooling | None = None
    """Pooling parameters; the request then returns one vector per prompt, with `n` = 1."""
    text: TextOptions = TextOptions()
    tools: ToolOptions | None = None
    """Parsing of the answers of a chat; None if all text is content."""
    limits: RequestLimits = RequestLimits()
    sinks: RequestSinks = field(default_factory=RequestSinks)
    prior_outputs: tuple[PriorOutput, ...] = ()
    """Per choice, the output to continue; empty for a new request."""
    predicted_text: str = ""
    """Expected output."""
    prediction: bytes = b""
    """Token ids of the prediction as int32, once encoded."""
    resumed: bool = False
    """The stream has begun before: it waits for missing services as long as a running one."""
    adapter: bytes = b""
    """Digest of the adapter of a resumed stream's beginning; empty for none."""

    @property
    def num_hidden(self) -> int:
        """Number of beams that run besides the requested choices."""
        beams = self.sampling.beams
        return max(0, beams.width - self.sampling.n) * len(self.prompts) if beams else 0

    @property
    def num_running(self) -> int:
        """Number of choices that have not ended."""
        ended = sum(past.ended for past in self.prior_outputs)
        return len(self.prompts) * self.sampling.n - ended


class PreparedRequest(NamedTuple):
    """A valid request with its encoded prompts, before anything runs."""

    request: GenerationRequest
    """Sampling parameters with the grammar of its tool calls, and bad words as ids."""
    prompts: list[EncodedPrompt]
    model_info: ModelInfo
