"""The order of a clip and its sound, as transformers' processors write it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import Qwen2_5OmniProcessor
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import Qwen3OmniMoeProcessor

from baton_mm_preprocess.video.families import VIDEO_FAMILIES
from tests.support.tiny_omni import written

PROCESSORS: dict[str, Any] = {
    "Qwen2_5OmniModel": Qwen2_5OmniProcessor,
    "Qwen3OmniMoeForConditionalGeneration": Qwen3OmniMoeProcessor,
}


@pytest.mark.row("A04", "A05")
@pytest.mark.parametrize("architecture", PROCESSORS)
def test_every_token_stands_where_transformers_writes_it(architecture: str) -> None:
    """Sounds that end before the clip and behind it; frames in, at and beyond chunks of 2 s."""
    family = VIDEO_FAMILIES[architecture].sound
    assert family is not None
    sound = family.read({"audio_start_token_id": 2}, 0, 1, lambda text: [3])
    for frames, heard, seconds in (
        (1, 40, 1.0),
        (5, 30, 1.0),
        (5, 200, 1.0),
        (4, 160, 0.97),
        (3, 260, 4.0),
        (6, 9, 0.5),
    ):
        grid = (frames, 4, 6)
        text = written(PROCESSORS[architecture], np.array([grid]), heard, seconds, tuple("0123"))
        found = sound.tokens(grid, frames * 6, heard, seconds)
        assert found == [int(token) for token in text], (frames, heard, seconds)


def test_a_config_says_how_fast_positions_go() -> None:
    family = VIDEO_FAMILIES["Qwen2_5OmniModel"].sound
    assert family is not None
    fields = {"position_id_per_seconds": 10, "seconds_per_chunk": 4, "audio_end_token_id": 8}
    sound = family.read(fields, 5, 6, lambda text: [7])
    assert (sound.marks, sound.places, sound.per_second, sound.chunk) == ((7, 8), (5, 6), 10, 40)
