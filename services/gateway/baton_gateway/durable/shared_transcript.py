"""Payloads of one durable stream, encoded once for all readers, who write in turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from baton_gateway.generation.output import OutputDelta, Started

BURST = 16
"""Payloads that a reader writes in one turn, and number of turns per iteration of the event
loop."""


class Transcript(Protocol):
    """Converts deltas to the payloads of one stream, deterministically.

    Life cycle: `opening` once, `add` for each delta in turn, `closing` once.
    """

    def opening(self, started: Started) -> Iterable[bytes]:
        """Return the payloads before the first delta."""

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        """Return the payloads of a delta."""

    def closing(self) -> Iterable[bytes]:
        """Return the payloads after the last delta."""


class SharedTranscript:
    """The payloads so far. The first reader that needs more encodes them for all."""

    def __init__(self, transcript: Transcript, started: Started) -> None:
        self._transcript = transcript
        self._num_deltas = 0
        self.payloads = list(transcript.opening(started))
        self.closed = False
        """Nothing follows."""

    def grow(self, deltas: Sequence[OutputDelta], *, complete: bool) -> bool:
        """Encode some of the new deltas. Returns whether there was anything to do.

        Args:
            deltas: all deltas of the stream so far.
            complete: none follow.
        """
        if self.closed:
            return False
        new = deltas[self._num_deltas : self._num_deltas + BURST]
        self._num_deltas += len(new)
        self.payloads += [part for delta in new for part in self._transcript.add(delta)]
        if not new and complete:
            self.payloads += self._transcript.closing()
            self.closed = True
        return bool(new) or self.closed


class Turns:
    """A queue of readers: only a few get a turn per iteration of the event loop, so that other work
    is not delayed.

    A turn has no owner, so a slow reader does not delay the others.
    """

    def __init__(self) -> None:
        self._waiting = deque[asyncio.Future[None]]()

    async def take(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._deal)
        await turn

    def _deal(self) -> None:
        for _ in range(min(BURST, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._deal)
