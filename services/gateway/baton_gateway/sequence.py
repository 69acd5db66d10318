"""One choice of a request: its token log, and how far its text has come."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from baton.errors import ServerFault
from baton.protocol import DecodeOpen, Sampling, Submit
from baton.tokens import pack
from baton_gateway.connection import Connection
from baton_gateway.generation import Delta, TokenLogprob
from baton_gateway.stream import Stream

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
    stream: Stream
    priority: int = 0
    tenant: str = ""
    stops: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Those of `sampling.stop_ids` that the client named."""
    include_stop: bool = False
    skip_special: bool = True
    log: array[int] = field(default_factory=lambda: array("i"))
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    cached: int = 0
    """Prompt tokens that came from the prefix cache."""
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
        )

    def extend(self, first: int, tokens: array[int], logprobs: Items[TokenLogprob]) -> None:
        """Append tokens `first`, `first + 1`, ...; those that the log has are dropped.

        Raises `ServerFault` when tokens before `first` are missing.
        """
        known = len(self.log) - first
        if known < 0:
            raise ServerFault("Tokens of this request were lost on the way. Send it again.")
        self.log += tokens[known:]
        self.logprobs += logprobs[known:]

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
        return len(self.log) - self.hidden

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
        filler = (self.length,) * (len(tokens) - len(ends))
        delta = Delta(
            choice=self.choice,
            text=text,
            tokens=tokens,
            ends=(ends + filler)[: len(tokens)],
            logprobs=tuple(self.logprobs[self.delivered : upto]),
            prompt_logprobs=self._prompt_logprobs(),
            cached=self.cached,
            reason="stop" if stop is not None else self.reason if last else None,
            stop=stop if stop is not None else self._stop_id() if last else None,
        )
        self.delivered = upto
        self.ended = delta.reason is not None
        self.stream.put(delta)

    def _stop_id(self) -> int | None:
        if self.reason != "stop" or not self.log:
            return None
        return self.log[-1] if self.log[-1] in self.stop_token_ids else None

    def _prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        if self.delivered or self.sampling.prompt_logprobs < 0:
            return None
        return tuple(self.prompt_logprobs.get(i) for i in range(len(self.prompt)))
