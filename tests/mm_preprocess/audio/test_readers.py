"""Audio processors from a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.readers import AudioFiles, audio_files, log_mel, whisper_chunks
from baton_mm_preprocess.audio.spectrum import LogMel


def test_the_files_of_a_checkpoint(tmp_path: Path) -> None:
    """The part of the newer file goes before the older file."""
    with pytest.raises(ModelError, match=r"no preprocessor_config\.json"):
        audio_files(tmp_path, "m", {})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_size": 128}))
    found = audio_files(tmp_path, "m", {"audio_config": {"d_model": 8}})
    assert (found.extractor, found.processor) == ({"feature_size": 128}, {})
    assert found.encoder == {"d_model": 8}
    newer = {"feature_extractor": {"feature_size": 64}, "max_audio_len": 90}
    (tmp_path / "processor_config.json").write_text(json.dumps(newer))
    found = audio_files(tmp_path, "m", {})
    assert (found.extractor, found.processor) == ({"feature_size": 64}, newer)


def test_settings_of_a_feature_extractor() -> None:
    fields = {"feature_size": 64, "n_fft": 512, "hop_length": 240, "sampling_rate": 24_000}
    assert log_mel(AudioFiles({}, fields)) == LogMel(64, 512, 240, 24_000)
    assert log_mel(AudioFiles({}, {})) == LogMel()
    for bad, words in (
        ({"feature_extractor_type": "Gemma3nAudioFeatureExtractor"}, "Gemma3n"),
        ({"do_normalize": True}, "do_normalize"),
    ):
        with pytest.raises(ModelError, match=words):
            log_mel(AudioFiles({}, bad))


def test_the_longest_sound() -> None:
    read = whisper_chunks(2, max_chunks=1, rounded_up=True)
    one = LogMelChunks(LogMel(), 2, max_chunks=1, rounded_up=True)
    assert read(AudioFiles({}, {})) == one
    assert read(AudioFiles({}, {"chunk_length": 15})) == LogMelChunks(
        LogMel(), 2, chunk_seconds=15, max_chunks=1, rounded_up=True
    )
    assert read(AudioFiles({}, {}, {"max_audio_len": 600})).max_chunks == 20
    assert whisper_chunks(4)(AudioFiles({}, {})).max_chunks == 0
