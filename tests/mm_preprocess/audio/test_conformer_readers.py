"""Settings of conformers' feature extractors."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.audio.conformer_readers import gemma3n, granite_speech, phi4_multimodal
from baton_mm_preprocess.audio.conformer_spectra import (
    KaldiFeatures,
    PairedFeatures,
    UsmFeatures,
)
from baton_mm_preprocess.audio.readers import AudioFiles


def test_settings_by_their_names() -> None:
    files = AudioFiles({"audio_soft_tokens_per_image": 9}, {"feature_size": 64, "mel_floor": 0.1})
    assert gemma3n(files) == UsmFeatures(9, bins=64, floor=0.1)
    assert gemma3n(AudioFiles({}, {"per_bin_mean": [1.0]})) == UsmFeatures(188, mean=(1.0,))
    assert phi4_multimodal(AudioFiles({}, {"win_length": 320})) == KaldiFeatures(window=320)
    fields = {"melspec_kwargs": {"n_mels": 40}, "projector_window_size": 12}
    assert granite_speech(AudioFiles({}, fields)) == PairedFeatures(12, 2, 40)


def test_what_is_not_supported_is_refused() -> None:
    for read, fields in (
        (gemma3n, {"dither": 0.1}),
        (phi4_multimodal, {"audio_downsample_rate": 2}),
    ):
        with pytest.raises(ValueError, match=r"dither|audio_downsample_rate"):
            read(AudioFiles({}, fields))
    with pytest.raises(ModelError, match="WhisperFeatureExtractor is not supported"):
        granite_speech(AudioFiles({}, {"feature_extractor_type": "WhisperFeatureExtractor"}))
