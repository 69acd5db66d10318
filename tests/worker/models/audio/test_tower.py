"""Audio towers against transformers, on tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_mm_preprocess.model_info import read_model
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.audio.tower import AudioTower
from baton_worker.models.decoder import Model
from tests.support.sounds import Sound, tones
from tests.support.tiny_audio import AUDIO_TOKEN, HEARING, MELS, heard, tiny_audio

CPU = BuildContext(torch.device("cpu"), torch.float32)
Features = tuple[Tensor, Grid]
Heard = tuple[list[Tensor], dict[str, Any]]
"""Embeddings of sounds by transformers, and what its model takes of the first one."""


def qwen2_audio(model: Any, folder: Path, sounds: list[Sound]) -> Heard:
    """Its forward alone masks padding, so each sound runs through it."""
    found = list[Tensor]()
    hook = model.model.multi_modal_projector.register_forward_hook(
        lambda module, args, output: found.append(output[0])
    )
    runs = [heard(folder, [sound], "Qwen2Audio") for sound in sounds]
    for inputs, [count] in runs:
        model(input_ids=torch.tensor([[5] + [AUDIO_TOKEN] * count]), **inputs)
    hook.remove()
    pairs = zip(found, runs, strict=True)
    return [made[:count] for made, (_, [count]) in pairs], runs[0][0]


def listening(stem: str) -> Callable[[Any, Path, list[Sound]], Heard]:
    """All sounds at one time. Music Flamingo must see which chunks are one sound."""

    def listen(model: Any, folder: Path, sounds: list[Sound]) -> Heard:
        inputs, counts = heard(folder, sounds, stem)
        ids = [id_ for count in counts for id_ in (5, *[AUDIO_TOKEN] * count)]
        known = {"input_ids": torch.tensor([ids])} if stem == "MusicFlamingo" else {}
        made = model.get_audio_features(**inputs, **known).pooler_output
        return list(torch.split(made, counts)), heard(folder, sounds[:1], stem)[0]

    return listen


@pytest.mark.row("A02", "A09", "A10", "A11", "F01.31", "F01.32", "F01.39")
def test_towers_make_the_numbers_of_transformers(tmp_path: Path, driver: Any) -> None:
    """From the samples on; and logits of texts around a sound."""
    for stem in HEARING:
        folder = tmp_path / stem
        reference = tiny_audio(stem, folder)
        sounds = [tones(seconds, seed=i) for i, seconds in enumerate((1.0, 0.37, 0.1, 0.993))]
        listen = qwen2_audio
        if stem != "Qwen2Audio":  # Which hears one chunk alone.
            sounds, listen = [*sounds, tones(2.3, seed=7)], listening(stem)
        with torch.no_grad():
            expected, whole = listen(reference, folder, sounds)
        loaded = load_model(folder, CPU)
        made = _made(folder, sounds)
        assert isinstance(loaded.model, Model) and isinstance(loaded.model.vision, AudioTower)
        _compare(loaded.model.vision, made, expected, stem)
        text = list(range(2, 40))
        text[8:8] = [AUDIO_TOKEN] * len(expected[0])
        media = MediaEmbeddings(torch.arange(8, 8 + len(expected[0])), expected[0])
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([text]), **whole).logits[0]
        step = driver(loaded, 1).step
        torch.testing.assert_close(
            step({0: text}, media, None)[0], logits, rtol=1e-3, atol=1e-3, msg=stem
        )


def _made(folder: Path, sounds: list[Sound]) -> list[Features]:
    """What the media preprocessor makes of sounds."""
    audio = read_model(folder, "m").audio
    assert audio is not None
    made = [audio.processor(sound) for sound in sounds]
    return [(torch.from_numpy(one.features), one.grid) for one in made]


def _compare(tower: AudioTower, made: list[Features], expected: list[Tensor], stem: str) -> None:
    sample = tower.sample_media(40)
    assert not any(tower.refusal(shape, grid) for shape, grid in sample), stem
    assert 40 <= sum(tower.num_tokens(shape, grid) for shape, grid in sample) < 90, stem
    found = tower.encode_media([frames for frames, _ in made], [grid for _, grid in made])
    for (frames, grid), one, other in zip(made, found, expected, strict=True):
        assert not tower.refusal(frames.shape, grid), stem
        assert len(one) == tower.num_tokens(frames.shape, grid), stem
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=stem)
    alone = tower.encode_media([made[1][0]], [made[1][1]])[0]
    assert torch.equal(alone, found[1]), "the numbers of a sound do not depend on others"


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    tiny_audio("Qwen2Audio", tmp_path)
    model = load_model(tmp_path, CPU).model
    assert isinstance(model, Model) and model.vision is not None
    tower = model.vision
    for shape, grid, words in (
        ((3, 30, 30), (1, 1, 1), "a spectrogram of shape"),
        ((1, MELS), (1, 1, 0), "a spectrogram of shape"),
        ((1, MELS, 100), (1, 100, 1), "are no grid"),
        ((1, MELS, 100), (2, 150, 0), "are no grid"),
        ((1, MELS, 100), (1, 101, 0), "are no grid"),
        ((1, MELS, 100), (1, 0, 0), "are no grid"),
        ((1, MELS, 50), (1, 50, 0), "chunks of 50 frames are not 51 to 100"),
        ((2, MELS, 60), (2, 150, 0), "chunks of 60 frames"),
    ):
        assert words in tower.refusal(shape, grid), shape
    assert not tower.refusal((1, MELS, 51), (1, 50, 0))
