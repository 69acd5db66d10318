"""Prompts of special tokens, and the rules of their outputs."""

from __future__ import annotations

import json

from baton.protocol import SpeechInfo
from baton_gateway.speech.prompts import output_rules, speech_prompt

MANY = SpeechInfo(
    start=100,
    end=99,
    no_timestamps=110,
    languages={"en": 101, "de": 102},
    transcribe=104,
    translate=103,
    previous=106,
    suppressed=(1, 2),
    suppressed_first=(3,),
    max_first_timestamp=50,
)
ENGLISH = SpeechInfo(start=100, end=99, no_timestamps=110)


def test_prompts_say_language_task_and_form() -> None:
    assert speech_prompt(MANY, "transcribe", "de", timestamps=False) == (100, 102, 104, 110)
    assert speech_prompt(MANY, "translate", "en", timestamps=True) == (100, 101, 103)
    assert speech_prompt(ENGLISH, "transcribe", "en", timestamps=False) == (100, 110)
    cut = speech_prompt(
        MANY, "transcribe", "de", timestamps=True, previous=(5, 6, 7, 8), max_previous=3
    )
    assert cut == (106, 6, 7, 8, 100, 102, 104)


def test_rules_of_timestamps_only_where_they_are_written() -> None:
    plain = json.loads(output_rules(MANY, timestamps=False)["transcript"])
    assert plain == {"suppressed": [1, 2], "suppressed_first": [3]}
    timed = json.loads(output_rules(MANY, timestamps=True)["transcript"])
    assert timed == plain | {"first_timestamp": 111, "end": 99, "max_first_timestamp": 50}
