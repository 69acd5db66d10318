"""Writers: convert an answer to the complete response or the events of a stream of an API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Protocol

from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import OutputDelta, Started


class Transcript(Protocol):
    """Converts the deltas of one stream to the payloads of its events, deterministically.

    Life cycle: `opening` once, `add` for each delta in turn, `closing` once.
    """

    def opening(self, started: Started) -> Iterable[bytes]:
        """Return the payloads before the first delta."""

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        """Return the payloads of a delta; none if its text is held back."""

    def closing(self) -> Iterable[bytes]:
        """Return the payloads after the last delta."""


class Writer(Protocol):
    """Writes the response to one request in the format of its API."""

    def response(self, started: Started, choices: list[Choice]) -> Any:
        """Return the complete response, to be encoded as JSON."""

    def transcript(self) -> Transcript:
        """Return a new transcript of the response."""


async def payloads(
    transcript: Transcript, started: Started, deltas: AsyncGenerator[OutputDelta, None]
) -> AsyncGenerator[bytes, None]:
    """Yield all payloads of a stream. Closing it closes `deltas`."""
    try:
        for payload in transcript.opening(started):
            yield payload
        async for delta in deltas:
            for payload in transcript.add(delta):
                yield payload
        for payload in transcript.closing():
            yield payload
    finally:
        await deltas.aclose()
