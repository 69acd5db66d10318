"""Subtitles."""

from __future__ import annotations

from dataclasses import dataclass

from baton_gateway.speech.subtitles import srt, vtt


@dataclass(frozen=True)
class Said:
    start: float
    end: float
    text: str


LINES = [Said(0.0, 1.5, " Hello"), Said(3661.0406, 3723.9996, "a\n\nb --> c")]


def test_both_formats() -> None:
    assert srt(LINES) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello\n\n2\n01:01:01,041 --> 01:02:04,000\na b -> c\n\n"
    )
    assert vtt(LINES).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello\n\n01:01:01.041")
