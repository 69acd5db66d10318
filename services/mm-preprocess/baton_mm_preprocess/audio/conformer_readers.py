"""Audio processors of conformer encoders."""

from __future__ import annotations

from typing import Any

from baton_mm_preprocess.audio.conformer_spectra import (
    KaldiFeatures,
    PairedFeatures,
    UsmFeatures,
)
from baton_mm_preprocess.audio.readers import AudioFiles, AudioProcessor, checked

_USM = {
    "feature_size": "bins",
    "sampling_rate": "rate",
    "frame_length_ms": "frame_ms",
    "hop_length_ms": "hop_ms",
    "min_frequency": "low",
    "max_frequency": "high",
    "preemphasis": "preemphasis",
    "preemphasis_htk_flavor": "htk_preemphasis",
    "fft_overdrive": "overdrive",
    "mel_floor": "floor",
    "input_scale_factor": "factor",
}
_KALDI = {
    "feature_size": "bins",
    "sampling_rate": "rate",
    "hop_length": "hop",
    "n_fft": "n_fft",
    "win_length": "window",
    "preemphasis": "preemphasis",
    "mel_min_frequency": "low",
    "mel_max_frequency": "high",
    "audio_compression_rate": "compression",
}
_PAIRED = {
    "sampling_rate": "rate",
    "n_fft": "n_fft",
    "win_length": "length",
    "hop_length": "hop",
    "n_mels": "bins",
    "projector_window_size": "window",
}
"""transformers' field name -> ours."""


def gemma3n(files: AudioFiles) -> AudioProcessor:
    """Settings of a `Gemma3nAudioFeatureExtractor`."""
    fields = checked(files, "Gemma3nAudioFeatureExtractor")
    if fields.get("dither"):
        raise ValueError("dither")
    mean, deviation = (tuple(fields.get(f"per_bin_{part}") or ()) for part in ("mean", "stddev"))
    count = int(files.config.get("audio_soft_tokens_per_image") or 188)
    return UsmFeatures(count, **_settings(files, _USM), mean=mean, deviation=deviation)


def phi4_multimodal(files: AudioFiles) -> AudioProcessor:
    """Settings of a `Phi4MultimodalFeatureExtractor`, or of Microsoft's own."""
    fields = checked(
        files,
        "Phi4MultimodalFeatureExtractor",
        "Phi4MMAudioFeatureExtractor",
    )
    rates = [fields.get(f"audio_{part}") or 1 for part in ("downsample_rate", "feat_stride")]
    if rates != [1, 1]:
        raise ValueError("audio_downsample_rate and audio_feat_stride other than 1")
    return KaldiFeatures(**_settings(files, _KALDI))


def granite_speech(files: AudioFiles) -> AudioProcessor:
    """Settings of a `GraniteSpeechFeatureExtractor`."""
    fields = checked(files, "GraniteSpeechFeatureExtractor")
    spectrum = dict(fields.get("melspec_kwargs") or {})
    window, rate = (fields.get(f"projector_{p}") for p in ("window_size", "downsample_rate"))
    inner = AudioFiles(files.config, {**fields, **spectrum})
    return PairedFeatures(**_settings(inner, _PAIRED), queries=int(window or 15) // int(rate or 5))


def _settings(files: AudioFiles, names: dict[str, str]) -> dict[str, Any]:
    """The settings in the files, by our names."""
    extractor = files.extractor
    return {
        field: extractor[name] for name, field in names.items() if extractor.get(name) is not None
    }
