"""The direct path of a stream: from a delta to the socket without waking a task."""

from __future__ import annotations

import time

from starlette.types import Scope

from baton_gateway.generation.output import OutputDelta
from baton_gateway.http.direct_writer import DirectWriter
from baton_gateway.http.write_batch import WriteBatch
from baton_gateway.streaming.event_frames import EventFrames
from baton_gateway.streaming.writer import Transcript


class DirectSink:
    """Writes the events of deltas to the transport: the same bytes as the response would.

    The response shares the transcript and the frames; it calls `close` before it ends.
    """

    __slots__ = ("_batch", "_direct", "_frames", "_open", "_transcript", "written")

    def __init__(
        self, direct: DirectWriter, batch: WriteBatch, transcript: Transcript, frames: EventFrames
    ) -> None:
        """`batch` coalesces the events with those of other requests."""
        self._direct, self._batch = direct, batch
        self._transcript, self._frames = transcript, frames
        self._open = True
        self.written = 0.0
        """Monotonic time of the last event."""

    @classmethod
    def of(
        cls, scope: Scope, batch: WriteBatch, transcript: Transcript, frames: EventFrames
    ) -> DirectSink | None:
        """Return the sink of a request; None if the server cannot write directly."""
        direct = DirectWriter.of(scope)
        return None if direct is None else cls(direct, batch, transcript, frames)

    def write(self, delta: OutputDelta) -> bool:
        """Write the events of a delta at once, or return False without side effects."""
        if not (self._open and self._direct.open):
            return False
        for payload in self._transcript.add(delta):
            self._batch.add(self._direct, self._frames.event(payload))
            self.written = time.monotonic()
        return True

    def close(self) -> None:
        """Stop direct writes; deltas go to the reader from now on."""
        self._open = False
