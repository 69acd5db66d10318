"""Transcripts as subtitles: SubRip and WebVTT (https://www.w3.org/TR/webvtt1/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class Line(Protocol):
    """One subtitle."""

    @property
    def start(self) -> float:
        """Seconds."""

    @property
    def end(self) -> float:
        """Seconds."""

    @property
    def text(self) -> str:
        """Text."""


def srt(lines: Sequence[Line]) -> str:
    """Return SubRip's format."""
    numbered = enumerate(lines, start=1)
    return "".join(f"{n}\n{_times(line, ',')}\n{_shown(line)}\n\n" for n, line in numbered)


def vtt(lines: Sequence[Line]) -> str:
    """Return WebVTT."""
    return "WEBVTT\n\n" + "".join(f"{_times(line, '.')}\n{_shown(line)}\n\n" for line in lines)


SUBTITLES: dict[str, Callable[[Sequence[Line]], str]] = {"srt": srt, "vtt": vtt}
"""Writer by `response_format`."""


def _times(line: Line, point: str) -> str:
    return f"{_time(line.start, point)} --> {_time(line.end, point)}"


def _time(seconds: float, point: str) -> str:
    seconds_ms, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, seconds_ms = divmod(seconds_ms, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{seconds_ms:02}{point}{milliseconds:03}"


def _shown(line: Line) -> str:
    """Return a text as one line without arrows: both formats end a text at an empty line."""
    return " ".join(line.text.split()).replace("-->", "->")
