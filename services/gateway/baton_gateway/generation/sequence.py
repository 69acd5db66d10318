"""One choice of a request: its token log and the state of its detokenisation."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.errors import ServerFault
from baton.output_parsing import Start
from baton.protocol import DecodeOpen, Media, Pooling, Sampling, Submit
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import pack
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.observability.request_timeline import RequestTimeline
from baton_gateway.output_formats import AnswerParser
from baton_gateway.pieces import Pieces, plain

if TYPE_CHECKING:
    from baton_gateway.clients.connection import Connection

_TAIL = 8
"""Prompt ids sent to the tokenizer before the first token, to decide its leading space."""


@dataclass(eq=False, slots=True)
class Sequence:
    """Token log of a choice. The scheduler appends tokens; text follows one tokenizer round trip
    later.

        log:   [ delivered | sent, text awaited | not sent yet | hidden stop id ]
                           ^delivered           ^sent          ^visible         ^len(log)

    Any tokenizer can decode the tokens after `delivered`, given those before it.
    """

    handle: int
    request: str
    choice: int
    prompt: PackedTokens
    sampling: Sampling
    stream: OutputQueue
    priority: int = 0
    model: str = ""
    """Name of the model whose workers run it."""
    adapter: bytes = b""
    """Digest of the adapter that is applied to the model; empty for none."""
    tokenizer: str = ""
    """Group of tokenizers that decode it."""
    tenant: str = ""
    salt: bytes = b""
    notes: AdmissionHeaders = field(default_factory=AdmissionHeaders)
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """The stop ids of `sampling.stop_ids` that the client requested."""
    include_stop: bool = False
    skip_special: bool = True
    start: Start = "content"
    """Part of the output in which it begins, determined by the end of the prompt."""
    parser: AnswerParser | None = None
    """Parses the output; None if all of it is content."""
    trace: str = ""
    """W3C traceparent; empty if none was sent."""
    deadline: float | None = None
    """Monotonic time of the deadline; None without one."""
    mute: bool = False
    """True if the text is not needed."""
    pooling: Pooling | None = None
    """Pooling parameters; a vector is then returned instead of text."""
    media: tuple[Media, ...] = ()
    """The media in the prompt."""
    prediction: bytes = b""
    """int32 ids of the expected output."""
    timeline: RequestTimeline = field(default_factory=RequestTimeline)
    """Timeline of the request."""
    log: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    renewed: bool = False
    """True if it was resubmitted and no token of the new run has arrived yet."""
    inherited: int = 0
    """Number of tokens at the start of the log that were charged before."""
    reason: str | None = None
    """Finish reason from the scheduler; None while the sequence runs."""
    ended: bool = False
    """True once the last delta was put or the request was released."""
    delivered: int = 0
    sent: int = 0
    length: int = 0
    """Characters of text delivered so far."""
    decoder: Connection | None = None
    """The tokenizer that decodes this sequence."""
    opened: bool = False
    """True while `decoder` holds a decode state for it."""
    end_sent: bool = False
    """True once `decoder` was sent the end of the tokens."""
    awaited: int = 0
    """Number of replies due from `decoder`."""
    stale: int = 0
    """Number of upcoming replies that belong to a discarded decode state."""

    def submission(self) -> Submit:
        """Return the submission that continues the sequence after its log."""
        return Submit(
            handle=self.handle,
            request=self.request,
            tokens=self.prompt.column,
            sampling=self.sampling,
            log=pack(self.log),
            priority=self.priority,
            tenant=self.tenant,
            salt=self.salt,
            explain=self.notes.explain,
            pooling=self.pooling,
            media=self.media,
            model=self.model,
            adapter=self.adapter,
            prediction=self.prediction,
        )

    def resume_after(self, prior: PriorOutput) -> None:
        """Continue after earlier output. Call before anything is sent or received."""
        self.log, self.logprobs = array("i", prior.tokens), list(prior.logprobs)
        self.delivered = self.sent = self.inherited = len(self.log)
        self.length, self.cached, self.ended = prior.length, prior.cached, prior.ended
        if self.parser is not None:
            self.parser.feed(prior.text)

    def remaining_ms(self, now: float) -> int:
        """Return the milliseconds until the deadline, at least 1; 0 without a deadline."""
        return 0 if self.deadline is None else max(1, int((self.deadline - now) * 1000))

    def is_from_previous_run(self, first: int) -> bool:
        """Return whether tokens from `first` on belong to a previous run.

        A scheduler that was considered lost may still have produced tokens.
        """
        self.renewed = self.renewed and first > len(self.log)
        return self.renewed

    def extend(self, first: int, tokens: array[int], logprobs: Items[TokenLogprob]) -> None:
        """Append tokens `first`, `first + 1`, ...; tokens already in the log are dropped.

        Raises `ServerFault` when tokens before `first` are missing.
        """
        num_known = len(self.log) - first
        if num_known < 0:
            raise ServerFault("Tokens of this request were lost on the way. Send it again.")
        self.log += tokens[num_known:] if num_known else tokens
        if logprobs:
            self.logprobs += logprobs[num_known:]

    def write(self, tokens: Items[int], logprobs: Items[TokenLogprob], reason: str) -> None:
        """Set the whole log at once, for beam search."""
        self.log, self.reason = array("i", tokens), reason
        if self.sampling.logprobs >= 0:
            self.logprobs = list(logprobs)

    @property
    def hidden(self) -> bool:
        """True if the last token is a stop id, which is counted but not shown."""
        return (
            self.reason == "stop"
            and not self.include_stop
            and len(self.log) > 0
            and self.log[-1] in self.sampling.stop_ids
        )

    @property
    def visible(self) -> int:
        """Number of tokens in the log whose text is shown."""
        return len(self.log) - (self.reason is not None and self.hidden)

    def opening(self) -> DecodeOpen:
        """Return the decode state from which a tokenizer continues after `delivered`."""
        return DecodeOpen(
            handle=self.handle,
            stops=self.stops,
            include_stop=self.include_stop,
            skip_special=self.skip_special,
            prompt_tail=self.prompt.tail(_TAIL),
            log=pack(self.log[: self.delivered]),
        )

    def answer(self, vector: bytes) -> None:
        """Put a float32 vector on the stream."""
        self.reason, self.ended = "stop", True
        self.timeline.delivered(self.handle)
        self.stream.put(OutputDelta(self.choice, "", array("i"), reason="stop", vector=vector))

    def reopen(self, decoder: Connection | None, stale: int = 0) -> None:
        """Discard the decode state; `decoder` reopens it after `delivered`."""
        self.decoder, self.stale = decoder, stale
        self.opened = self.end_sent = False
        self.sent, self.awaited = self.delivered, 0

    def deliver(self, upto: int, text: str, ends: tuple[int, ...], stop: str | None) -> None:
        """Put the text of tokens `delivered .. upto - 1` on the stream."""
        self.length += len(text)
        last = stop is None and self.end_sent and not self.awaited
        if last:
            upto = len(self.log)
        tokens = self.log[self.delivered : upto]
        if len(ends) != len(tokens):
            ends = (ends + (self.length,) * (len(tokens) - len(ends)))[: len(tokens)]
        reason = "stop" if stop is not None else self.reason if last else None
        pieces, reason, thought = self._read(text, reason, len(tokens))
        delta = OutputDelta(
            choice=self.choice,
            text=text,
            tokens=tokens,
            ends=ends,
            logprobs=tuple(self.logprobs[self.delivered : upto]) if self.logprobs else (),
            prompt_logprobs=None if self.delivered else self._prompt_logprobs(),
            cached=self.cached,
            reason=reason,
            stop=stop if stop is not None else self._stop_id() if last else None,
            pieces=pieces,
            reasoning_tokens=thought,
        )
        self.delivered = upto
        self.ended = delta.reason is not None
        if self.ended:
            self.timeline.delivered(self.handle)
        self.stream.put(delta)

    def _read(self, text: str, reason: str | None, count: int) -> tuple[Pieces, str | None, int]:
        """Return the pieces of a text, the finish reason, and how many of its `count` tokens are
        thinking."""
        if self.parser is None:
            return plain(text), reason, 0
        before = self.parser.thinking
        pieces = self.parser.feed(text, last=reason is not None)
        thought = count if self.parser.thinking or (before and not pieces) else 0
        return pieces, self.parser.reason(reason), thought

    def _stop_id(self) -> int | None:
        if self.reason != "stop" or not self.log:
            return None
        return self.log[-1] if self.log[-1] in self.stop_token_ids else None

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        if self.sampling.prompt_logprobs < 0:
            return None
        return tuple(self.prompt_logprobs.get(i) for i in range(len(self.prompt)))
