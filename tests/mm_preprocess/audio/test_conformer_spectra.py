"""Features of conformers, against transformers' extractors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.audio_utils import mel_filter_bank
from transformers.models.gemma3n.feature_extraction_gemma3n import Gemma3nAudioFeatureExtractor
from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import (
    Phi4MultimodalFeatureExtractor,
)

from baton.errors import InvalidRequest
from baton_mm_preprocess.audio.conformer_spectra import (
    Features,
    KaldiFeatures,
    PairedFeatures,
    Samples,
    UsmFeatures,
)
from tests.support.sounds import tones

SOUNDS = [tones(1.3)[:samples] for samples in (1700, 16_000, 20_001)]


@pytest.mark.row("F01.37", "F01.38")
def test_features_are_those_of_transformers() -> None:
    usm, phi = Gemma3nAudioFeatureExtractor(), Phi4MultimodalFeatureExtractor()
    for sound in SOUNDS:
        wanted = usm([sound], return_tensors="np")
        assert wanted["input_features_mask"].all()
        found = UsmFeatures(188)(sound)
        assert found.num_tokens == 189 and found.grid == (1, found.features.shape[2], 0)
        _close(found.features, wanted["input_features"])
        theirs = phi(sound, sampling_rate=16_000)
        found = KaldiFeatures()(sound)
        assert found.num_tokens == int(theirs["audio_embed_sizes"][0])
        _close(found.features, theirs["audio_input_features"].numpy())


def test_other_settings_of_gemma3n() -> None:
    changes = {"preemphasis_htk_flavor": False, "per_bin_mean": [0.5] * 128}
    changes |= {"per_bin_stddev": [2.0] * 128, "fft_overdrive": False}
    wanted = Gemma3nAudioFeatureExtractor(**changes)([SOUNDS[1]], return_tensors="np")
    ours = UsmFeatures(
        188, htk_preemphasis=False, overdrive=False, mean=(0.5,) * 128, deviation=(2.0,) * 128
    )
    _close(ours(SOUNDS[1]).features, wanted["input_features"])
    plain = Gemma3nAudioFeatureExtractor(preemphasis=0.0)([SOUNDS[1]], return_tensors="np")
    _close(UsmFeatures(188, preemphasis=0.0)(SOUNDS[1]).features, plain["input_features"])


@pytest.mark.row("F01.34")
def test_pairs_of_frames_are_those_of_granite_speech() -> None:
    """Its extractor needs torchaudio, so its steps are taken here."""
    for sound in SOUNDS:
        wanted = _paired(sound)
        found = PairedFeatures()(sound)
        assert found.num_tokens == 3 * -(-((len(sound) // 160 + 1) // 2) // 15)
        _close(found.features, wanted[None])


def test_sounds_that_are_too_short_or_too_long() -> None:
    for processor in (UsmFeatures(188), KaldiFeatures(), PairedFeatures()):
        with pytest.raises(InvalidRequest, match="too short"):
            processor(np.zeros(200, np.float32))
    with pytest.raises(InvalidRequest, match="longer than the 1 s"):
        UsmFeatures(188, max_seconds=1)(SOUNDS[2])


def _paired(sound: Samples) -> Features:
    """float32 [frames, 160]."""
    spectrum = torch.stft(
        torch.from_numpy(sound), 512, 160, 400, torch.hann_window(400), return_complex=True
    )
    filters = mel_filter_bank(257, 80, 0.0, 8000.0, 16_000, norm=None, mel_scale="htk")
    mel = (spectrum.abs() ** 2).T @ torch.from_numpy(filters).float()
    logs = mel.clip(min=1e-10).log10()
    scaled = torch.maximum(logs, logs.max() - 8.0) / 4 + 1
    return scaled[: len(scaled) // 2 * 2].reshape(-1, 160).numpy()


def _close(found: Features, wanted: Features) -> None:
    """[1, bins, frames] and [1, frames, bins]."""
    assert np.abs(found.transpose(0, 2, 1) - wanted).max() < 1e-4
