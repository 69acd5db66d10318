"""Two encoders of one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.engine.multimodal.mrope import axis_positions
from baton_worker.engine.multimodal_input import SequenceMedia
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.tower_pair import TowerPair
from tests.oracles.audio.heard import makers
from tests.oracles.audio.qwen import AUDIO_TOKEN

CPU = BuildContext(torch.device("cpu"), torch.float32)
IMAGE, START = 319, (316, 315)
"""Token of images, and those before images and sounds."""


@pytest.mark.row("A04", "A05")
def test_images_and_sounds_of_one_prompt(tmp_path: Path) -> None:
    """Each goes to its encoder, whose numbers do not depend on the other; positions are those of
    transformers."""
    made = makers()["Qwen2_5OmniThinkerForConditionalGeneration"](tmp_path)
    tower: Any = load_model(tmp_path, CPU).model.vision
    assert isinstance(tower, TowerPair)
    assert set(tower.media_tokens) == {AUDIO_TOKEN, IMAGE, 318} and tower.tokens_per_second == 25
    image, grid = torch.randn(24, 3 * 2 * 4 * 4), (1, 4, 6)
    (first, one), (second, two) = made.clips[1:]
    found = tower.encode_media([first, image, second], [one, grid, two])
    for got, wanted in zip(found[::2], made.expected[1:], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    assert torch.equal(found[1], tower.encode_media([image], [grid])[0])
    samples = tower.sample_media(10)
    assert not any(tower.refusal(shape, grid) for shape, grid in samples)
    assert "a spectrogram" in tower.refusal((24, 96), one)

    counts = [len(part) for part in found]
    ids = [5, 6, START[1], *[AUDIO_TOKEN] * counts[0], 314, 7, START[0], *[IMAGE] * counts[1], 8]
    ids += [START[1], *[AUDIO_TOKEN] * counts[2], 314, 9, 10]
    tokens = np.array(ids)
    places = [np.flatnonzero(tokens == AUDIO_TOKEN), np.flatnonzero(tokens == IMAGE)]
    parts = [places[0][: counts[0]], places[1], places[0][counts[0] :]]
    pixels = np.zeros(0, np.float32)
    media = [
        SequenceMedia(b"", at, pixels, some)
        for at, some in zip(parts, (one, grid, two), strict=True)
    ]
    positions = axis_positions(media, tower.tokens_per_second).of(np.arange(len(ids)))
    theirs, _ = made.text.get_rope_index(
        torch.tensor([ids]),
        torch.tensor([grid]),
        audio_seqlens=torch.tensor([one[1], two[1]]),
    )
    assert (positions == theirs[:, 0].numpy()).all()
