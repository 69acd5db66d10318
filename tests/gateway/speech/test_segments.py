"""Outputs with timestamps as segments."""

from __future__ import annotations

from baton.protocol import SpeechInfo
from baton_gateway.speech.segments import TimedTokens, timed_segments

INFO = SpeechInfo(start=100, end=99, no_timestamps=110)
ZERO = 111
"""The first timestamp."""


def test_text_between_two_timestamps_is_a_segment() -> None:
    one, two = ZERO + 50, ZERO + 100
    tokens = [ZERO, 1, 2, one, one, 3, two, two + 10, 4, 99, 5]
    assert list(timed_segments(tokens, INFO, 10.0, 13.0)) == [
        TimedTokens(10.0, 11.0, (ZERO, 1, 2, one), (1, 2), 0),
        TimedTokens(11.0, 12.0, (one, 3, two), (3,), 4),
        TimedTokens(12.2, 13.0, (two + 10, 4), (4,), 7),
    ]


def test_segments_stay_within_the_chunk() -> None:
    tokens = [1, ZERO + 500, ZERO + 600, 2]
    assert list(timed_segments(tokens, INFO, 1.0, 3.0)) == [
        TimedTokens(1.0, 3.0, (1, ZERO + 500), (1,), 0),
        TimedTokens(3.0, 3.0, (ZERO + 600, 2), (2,), 2),
    ]
    assert list(timed_segments([ZERO, ZERO + 1, 99], INFO, 0.0, 1.0)) == []
