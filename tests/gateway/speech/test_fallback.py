"""Whisper's recipe."""

from __future__ import annotations

import pytest

from baton_gateway.speech.fallback import FallbackRules, compression

SURE, UNSURE = [-0.1, -0.2], [-1.5, -2.0]
LOOP, PLAIN = "and so on " * 40, "What is said is written down."


def test_the_temperatures_that_follow() -> None:
    assert [*FallbackRules().temperatures(0.0)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert [*FallbackRules(increment=0.3).temperatures(0.5)] == pytest.approx([0.8])
    assert [*FallbackRules().temperatures(1.0)] == []


def test_what_is_written_again() -> None:
    """As `decode_with_fallback` of openai/whisper decides."""
    both = FallbackRules(compression_ratio=2.4, logprob=-1.0, no_speech=0.6)
    for rules, text, logprobs, no_speech, fails, silent in (
        (both, PLAIN, SURE, 0.0, False, False),
        (both, PLAIN, UNSURE, 0.0, True, False),
        (both, LOOP, SURE, 0.0, True, False),
        (both, LOOP, SURE, 0.9, True, False),
        (both, LOOP, UNSURE, 0.9, False, True),
        (both, PLAIN, [], 0.0, False, False),
        (FallbackRules(compression_ratio=2.4), f"<|0.00|>{LOOP}", UNSURE, 0.9, True, False),
        (FallbackRules(no_speech=0.6), PLAIN, SURE, 0.9, False, True),
        (FallbackRules(compression_ratio=2.4, no_speech=0.6), LOOP, SURE, 0.9, True, True),
        (FallbackRules(), LOOP, UNSURE, 0.9, False, False),
    ):
        assert rules.fails(text, logprobs, no_speech) == fails, (rules, text)
        assert rules.silent(logprobs, no_speech) == silent, (rules, text)
    assert compression(LOOP) > 2.4 > compression(PLAIN) and compression("") == 0.0
