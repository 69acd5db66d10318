"""Trace spans of the sequences in a batch: one for prefill, one for decode."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.trace import Span

from baton.protocol import NewSequence
from baton.telemetry import Attributes, start


class Spans:
    """Open spans by slot. A sequence that is not traced costs nothing."""

    def __init__(self) -> None:
        self._prefill: dict[int, tuple[Span, str]] = {}
        self._decode: dict[int, Span] = {}

    def enter(self, sequences: Iterable[NewSequence]) -> None:
        """Start the prefill span of those that are traced."""
        for new in sequences:
            if new.trace:
                facts: Attributes = {"request": new.request, "tokens": len(new.tokens) // 4}
                self._prefill[new.slot] = start("prefill", new.trace, facts), new.trace

    def sampled(self, slots: Iterable[int]) -> None:
        """A first token ends the prefill and starts the decode."""
        if not self._prefill:
            return
        for slot in self._prefill.keys() & set(slots):
            span, trace = self._prefill.pop(slot)
            span.end()
            self._decode[slot] = start("decode", trace)

    def end(self, slots: Iterable[int]) -> None:
        """End the spans of these sequences."""
        if not self._prefill and not self._decode:
            return
        for slot in slots:
            if slot in self._prefill:
                self._prefill.pop(slot)[0].end()
            if slot in self._decode:
                self._decode.pop(slot).end()
