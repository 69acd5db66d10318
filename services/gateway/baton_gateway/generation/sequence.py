"""One choice of a request: its token log, and how far its text has come."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from baton.errors import ServerFault
from baton.protocol import Blob, DecodeOpen, Pooling, Sampling, Submit
from baton.protocol.token_columns import pack
from baton_gateway.clients.connection import Connection
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.request import PriorOutput
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.observability.latency import RequestTimeline

_TAIL = 8
"""Prompt ids that a tokenizer sees before the first token, for its leading space."""


@dataclass(eq=False, slots=True)
class Sequence:
    """The log grows by what the scheduler sends; text follows, one tokenizer round trip later.

        log:   [ delivered | sent, text awaited | not sent yet | hidden stop id ]
                           ^delivered           ^sent          ^visible         ^len(log)

    Everything right of `delivered` can be decoded again by any tokenizer that is given what is
    left of it.
    """

    handle: int
    request: str
    choice: int
    prompt: array[int]
    sampling: Sampling
    stream: OutputQueue
    priority: int = 0
    tenant: str = ""
    salt: bytes = b""
    notes: AdmissionHeaders = field(default_factory=AdmissionHeaders)
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Those of `sampling.stop_ids` that the client named."""
    include_stop: bool = False
    skip_special: bool = True
    trace: str = ""
    """W3C traceparent that goes with it, or empty."""
    deadline: float | None = None
    """When it is to end in an error, by the monotonic clock; None without a deadline."""
    mute: bool = False
    """Its text is nobody's concern."""
    pooling: Pooling | None = None
    """What vector is wanted in place of text."""
    media: tuple[Blob, ...] = ()
    """What placeholders of the prompt stand for."""
    account: RequestTimeline = field(default_factory=RequestTimeline)
    """Where the time of its request is written down."""
    log: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
    renewed: bool = False
    """It has been handed over again, and nothing has come of that yet."""
    inherited: int = 0
    """Tokens of the log that somebody else has paid for."""
    reason: str | None = None
    """Why the scheduler ended it; None while it runs there."""
    ended: bool = False
    """The last delta has been put, or the request has gone."""
    delivered: int = 0
    sent: int = 0
    length: int = 0
    """Characters of text that were delivered."""
    home: Connection | None = None
    """The tokenizer that decodes it."""
    opened: bool = False
    """`home` holds a decode state of it."""
    told: bool = False
    """`home` knows that no more tokens follow."""
    awaited: int = 0
    """Answers that `home` owes."""
    stale: int = 0
    """How many of the next answers belong to a decode state that no longer exists."""

    def submission(self) -> Submit:
        """The sequence as work for a scheduler, continuing after its log."""
        return Submit(
            handle=self.handle,
            request=self.request,
            tokens=pack(self.prompt),
            sampling=self.sampling,
            log=pack(self.log),
            priority=self.priority,
            tenant=self.tenant,
            salt=self.salt,
            explain=self.notes.explain,
            pooling=self.pooling,
            media=self.media,
        )

    def follow(self, past: PriorOutput) -> None:
        """Go on where a choice was left; nothing may have been sent or received yet."""
        self.log, self.logprobs = array("i", past.tokens), list(past.logprobs)
        self.delivered = self.sent = self.inherited = len(self.log)
        self.length, self.cached, self.ended = past.length, past.cached, past.ended

    def left(self, now: float) -> int:
        """Milliseconds until the deadline, at least 1; 0 when there is none."""
        return 0 if self.deadline is None else max(1, int((self.deadline - now) * 1000))

    def overtaken(self, first: int) -> bool:
        """Whether tokens from `first` on come from the run before this one.

        A scheduler that was taken for lost may have gone on for a while, unheard.
        """
        self.renewed = self.renewed and first > len(self.log)
        return self.renewed

    def extend(self, first: int, tokens: array[int], logprobs: Items[TokenLogprob]) -> None:
        """Append tokens `first`, `first + 1`, ...; those that the log has are dropped.

        Raises `ServerFault` when tokens before `first` are missing.
        """
        known = len(self.log) - first
        if known < 0:
            raise ServerFault("Tokens of this request were lost on the way. Send it again.")
        self.log += tokens[known:] if known else tokens
        if logprobs:
            self.logprobs += logprobs[known:]

    def write(self, tokens: Items[int], logprobs: Items[TokenLogprob], reason: str) -> None:
        """The whole log at once, by another hand than the scheduler's."""
        self.log, self.reason = array("i", tokens), reason
        if self.sampling.logprobs >= 0:
            self.logprobs = list(logprobs)

    @property
    def hidden(self) -> bool:
        """The last token is a stop id, which is counted but not shown."""
        return (
            self.reason == "stop"
            and not self.include_stop
            and len(self.log) > 0
            and self.log[-1] in self.sampling.stop_ids
        )

    @property
    def visible(self) -> int:
        """Tokens of the log whose text is shown."""
        return len(self.log) - (self.reason is not None and self.hidden)

    def opening(self) -> DecodeOpen:
        """What a tokenizer needs to go on after `delivered`."""
        return DecodeOpen(
            handle=self.handle,
            stops=self.stops,
            include_stop=self.include_stop,
            skip_special=self.skip_special,
            prompt_tail=pack(self.prompt[-_TAIL:]),
            log=pack(self.log[: self.delivered]),
        )

    def answer(self, vector: bytes) -> None:
        """Put the vector, float32, on the stream; there is nothing to decode."""
        self.reason, self.ended = "stop", True
        self.account.delivered(self.handle)
        self.stream.put(OutputDelta(self.choice, "", array("i"), reason="stop", vector=vector))

    def reopen(self, home: Connection | None, stale: int = 0) -> None:
        """Forget the decode state: `home` is to open it anew, after what was delivered."""
        self.home, self.stale = home, stale
        self.opened = self.told = False
        self.sent, self.awaited = self.delivered, 0

    def deliver(self, upto: int, text: str, ends: tuple[int, ...], stop: str | None) -> None:
        """Put the text of tokens `delivered .. upto - 1` on the stream."""
        self.length += len(text)
        last = stop is None and self.told and not self.awaited
        if last:
            upto = len(self.log)
        tokens = self.log[self.delivered : upto]
        if len(ends) != len(tokens):
            ends = (ends + (self.length,) * (len(tokens) - len(ends)))[: len(tokens)]
        delta = OutputDelta(
            choice=self.choice,
            text=text,
            tokens=tokens,
            ends=ends,
            logprobs=tuple(self.logprobs[self.delivered : upto]) if self.logprobs else (),
            prompt_logprobs=None if self.delivered else self._prompt_logprobs(),
            cached=self.cached,
            reason="stop" if stop is not None else self.reason if last else None,
            stop=stop if stop is not None else self._stop_id() if last else None,
        )
        self.delivered = upto
        self.ended = delta.reason is not None
        if self.ended:
            self.account.delivered(self.handle)
        self.stream.put(delta)

    def _stop_id(self) -> int | None:
        if self.reason != "stop" or not self.log:
            return None
        return self.log[-1] if self.log[-1] in self.stop_token_ids else None

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        if self.sampling.prompt_logprobs < 0:
            return None
        return tuple(self.prompt_logprobs.get(i) for i in range(len(self.prompt)))
