"""Audio preprocessing of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.audio.audio_input import read_audio
from baton_mm_preprocess.audio.families import AudioFamily
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.readers import whisper_chunks


def test_a_checkpoint_with_an_extractor(tmp_path: Path) -> None:
    family = AudioFamily(whisper_chunks(2, max_chunks=1), "<|AUDIO|>")
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"feature_size": 16}))
    found = read_audio(tmp_path, "m", {"audio_token_index": 5}, family)
    assert isinstance(found.processor, LogMelChunks) and found.processor.spectrum.num_mels == 16
    assert (found.marker, found.audio_token) == (5, 5) and found.tokens(3) == [5, 5, 5]
    needing = replace(family, needs=("audio_config",))
    with pytest.raises(ModelError, match="no encoder of sounds"):
        read_audio(tmp_path, "m", {"audio_token_index": 5}, needing)
    file.write_text(json.dumps({"feature_size": "many"}))
    with pytest.raises(ModelError, match="a field that makes no sense"):
        read_audio(tmp_path, "m", {"audio_token_index": 5}, family)
