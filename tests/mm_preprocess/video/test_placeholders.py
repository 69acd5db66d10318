"""What stands for clips; test_families.py compares it with transformers."""

from __future__ import annotations

from types import SimpleNamespace

from baton_mm_preprocess.video.placeholders import qwen3, smolvlm
from baton_mm_preprocess.video.processed_clip import ClipTimes


def test_an_odd_number_of_frames_has_the_last_one_twice() -> None:
    processor = SimpleNamespace(sampling=SimpleNamespace(group=2))
    pieces = list(qwen3(processor, (2, 4, 4), 8, ClipTimes((0.0, 1.0, 2.0), 3.0, 2.0)))
    assert pieces[0] == "<0.5 seconds><|vision_start|>" and pieces[1] == 4
    assert pieces[3] == "<2.0 seconds><|vision_start|>"


def test_numbers_in_words() -> None:
    words = {
        0: "zero",
        13: "thirteen",
        40: "forty",
        64: "sixty-four",
        100: "one hundred",
        768: "seven hundred and sixty-eight",
    }
    for number, word in words.items():
        times = ClipTimes((), 3_723.9, 1.0)
        text = "".join(map(str, smolvlm(SimpleNamespace(), (number, 0, 0), 0, times)))
        assert text.startswith(f"You are provided the following series of {word} frames from a ")
        assert "1:02:03 [H:MM:SS]" in text
