"""A transcript that counts what it encodes."""

from __future__ import annotations

from collections.abc import Iterable

from baton_gateway.generation.output import OutputDelta, Started


class CountingTranscript:
    """Writes the text of each delta, except "b"."""

    def __init__(self) -> None:
        self.encoded = 0

    def opening(self, started: Started) -> Iterable[bytes]:
        return [b"<"]

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        self.encoded += 1
        return [] if delta.text == "b" else [delta.text.encode()]

    def closing(self) -> Iterable[bytes]:
        return [b">"]
