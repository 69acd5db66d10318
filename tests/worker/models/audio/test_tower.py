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
from tests.support.tiny_audio import AUDIO_TOKEN, CHUNK_SECONDS, HEARING, MELS, tiny_audio

CPU = BuildContext(torch.device("cpu"), torch.float32)
Heard = tuple[Tensor, Grid]
Listen = Callable[[Any, list[Sound]], tuple[list[Tensor], dict[str, Any]]]
"""A model of transformers and sounds to their embeddings, and what it takes of the first one."""


def extracted(sounds: list[Sound]) -> tuple[Tensor, Tensor]:
    """Features of whole chunks, and their masks, by transformers."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(MELS, chunk_length=CHUNK_SECONDS)
    found = extractor(sounds, sampling_rate=16_000, return_attention_mask=True, return_tensors="pt")
    return found["input_features"], found["attention_mask"]


def qwen2_audio(model: Any, sounds: list[Sound]) -> tuple[list[Tensor], dict[str, Any]]:
    """Its forward alone masks padding, so each sound runs through it."""
    features, mask = extracted(sounds)
    found = list[Tensor]()
    hook = model.model.multi_modal_projector.register_forward_hook(
        lambda module, args, output: found.append(output[0])
    )
    counts = [(((int(n) - 1) // 2 + 1) - 2) // 2 + 1 for n in mask.sum(-1)]
    for one, seen, count in zip(features, mask, counts, strict=True):
        ids = torch.tensor([[5] + [AUDIO_TOKEN] * count])
        model(input_ids=ids, input_features=one[None], feature_attention_mask=seen[None])
    hook.remove()
    whole = {"input_features": features[:1], "feature_attention_mask": mask[:1]}
    return [made[:count] for made, count in zip(found, counts, strict=True)], whole


LISTENERS: dict[str, Listen] = {"Qwen2Audio": qwen2_audio}


@pytest.mark.row("A02", "F01.31", "F01.32")
def test_towers_make_the_numbers_of_transformers(tmp_path: Path, driver: Any) -> None:
    """From the samples on; and logits of texts around a sound."""
    for stem in HEARING:
        folder = tmp_path / stem
        reference = tiny_audio(stem, folder)
        sounds = [tones(seconds, seed=i) for i, seconds in enumerate((1.0, 0.37, 0.1, 0.993))]
        with torch.no_grad():
            expected, whole = LISTENERS[stem](reference, sounds)
        loaded = load_model(folder, CPU)
        heard = _heard(folder, sounds)
        assert isinstance(loaded.model, Model) and isinstance(loaded.model.vision, AudioTower)
        _compare(loaded.model.vision, heard, expected, stem)
        text = list(range(2, 40))
        text[8:8] = [AUDIO_TOKEN] * len(expected[0])
        media = MediaEmbeddings(torch.arange(8, 8 + len(expected[0])), expected[0])
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([text]), **whole).logits[0]
        step = driver(loaded, 1).step
        torch.testing.assert_close(
            step({0: text}, media, None)[0], logits, rtol=1e-3, atol=1e-3, msg=stem
        )


def _heard(folder: Path, sounds: list[Sound]) -> list[Heard]:
    """What the media preprocessor makes of sounds."""
    audio = read_model(folder, "m").audio
    assert audio is not None
    made = [audio.processor(sound) for sound in sounds]
    return [(torch.from_numpy(one.features), one.grid) for one in made]


def _compare(tower: AudioTower, heard: list[Heard], expected: list[Tensor], stem: str) -> None:
    sample = tower.sample_media(40)
    assert not any(tower.refusal(shape, grid) for shape, grid in sample), stem
    assert 40 <= sum(tower.num_tokens(shape, grid) for shape, grid in sample) < 90, stem
    found = tower.encode_media([frames for frames, _ in heard], [grid for _, grid in heard])
    for (frames, grid), one, other in zip(heard, found, expected, strict=True):
        assert not tower.refusal(frames.shape, grid), stem
        assert len(one) == tower.num_tokens(frames.shape, grid), stem
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, msg=stem)
    alone = tower.encode_media([heard[1][0]], [heard[1][1]])[0]
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
