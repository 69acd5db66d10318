"""Chunks of spectrograms and their tokens, against transformers' processors."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.spectrum import LogMel
from tests.support.sounds import tones

MEL = LogMel(16)
REFERENCE = WhisperFeatureExtractor(16, chunk_length=2)


def test_one_chunk_without_what_no_encoder_sees() -> None:
    """As Qwen2-Audio: the frames of the sound, and two that its convolutions read."""
    chunks = LogMelChunks(MEL, 2, chunk_seconds=2, max_chunks=1)
    for samples in (1600, 1601, 16_000, 16_077, 31_900, 32_000):
        sound = tones(2.0)[:samples]
        wanted = REFERENCE(
            sound, sampling_rate=16_000, return_attention_mask=True, return_tensors="np"
        )
        frames = int(wanted["attention_mask"].sum())
        found = chunks(sound)
        sent = min(frames + 2, 200)
        assert found.features.shape == (1, 16, sent)
        assert np.abs(found.features - wanted["input_features"][..., :sent]).max() < 1e-4
        assert found.grid == (1, frames, 0)
        assert found.num_tokens == (((frames - 1) // 2 + 1) - 2) // 2 + 1
    with pytest.raises(InvalidRequest, match="longer than the 2 s") as caught:
        chunks(tones(2.1))
    assert caught.value.code == "audio_too_large"


def test_several_chunks() -> None:
    sound = tones(4.5, seed=1)
    parts = [np.pad(part, (0, 32_000 - len(part))) for part in np.split(sound, [32_000, 64_000])]
    apart = REFERENCE(parts, sampling_rate=16_000, return_tensors="np")["input_features"]
    found = LogMelChunks(MEL, 2, chunk_seconds=2)(sound)
    assert np.abs(found.features - apart).max() < 1e-4
    assert found.grid == (3, 450, 0) and found.num_tokens == 50 + 50 + 12

    whole = REFERENCE(
        np.concatenate(parts), sampling_rate=16_000, truncation=False, return_tensors="np"
    )["input_features"].reshape(16, 3, 200)
    padded = LogMelChunks(MEL, 4, chunk_seconds=2, masked=False, shared_range=True)(sound)
    assert np.abs(padded.features - whole.transpose(1, 0, 2)).max() < 1e-4
    assert padded.grid == (3, 600, 0) and padded.num_tokens == 75


def test_states_that_are_too_few_for_an_embedding() -> None:
    down, up = (LogMelChunks(MEL, 8, rounded_up=rounded) for rounded in (False, True))
    assert (down.num_tokens(3000 + 17), up.num_tokens(3000 + 17)) == (187 + 1, 188 + 2)
    assert (down.num_tokens(0), up.num_tokens(0)) == (0, 0)


def test_a_sound_that_ends_where_it_ends() -> None:
    """As Ultravox's processor: the last hop is filled up, the last of several chunks with zeros."""
    chunks = LogMelChunks(MEL, 8, chunk_seconds=2, rounded_up=True, exact=True)
    for samples, frames in ((100, 2), (1601, 11), (16_077, 101), (32_000, 200), (72_001, 451)):
        sound = tones(5.0, seed=2)[:samples]
        filled = np.pad(sound, (0, max(0, 320 - samples)))
        wanted = REFERENCE(
            filled,
            sampling_rate=16_000,
            padding="longest",
            pad_to_multiple_of=160,
            truncation=False,
            return_attention_mask=True,
            return_tensors="np",
        )
        found = chunks(sound)
        assert int(wanted["attention_mask"].sum()) == frames == found.num_frames
        flat = found.features.transpose(1, 0, 2).reshape(16, -1)
        assert np.abs(flat[:, :frames] - wanted["input_features"][0]).max() < 1e-4
        assert not flat[:, frames:].any() and (len(found.features) == 1) == (frames <= 200)
        parts = [min(200, frames - first) for first in range(0, frames, 200)]
        assert found.num_tokens == sum(-(-part // 16) for part in parts)
