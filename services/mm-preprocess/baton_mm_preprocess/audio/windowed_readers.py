"""Reads audio processors of encoders that process a spectrogram in windows."""

from __future__ import annotations

from baton.checkpoint.streamed_speech import read_streamed_speech
from baton.errors import ModelError
from baton_mm_preprocess.audio.decibel_windows import DecibelWindows
from baton_mm_preprocess.audio.grouped_windows import GroupedWindows
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.log_mel_windows import LogMelWindows
from baton_mm_preprocess.audio.readers import AudioFiles, AudioProcessor, checked, log_mel
from baton_mm_preprocess.audio.spectrum import LogMel
from baton_mm_preprocess.audio.streamed_mel import StreamedMel

_DECIBELS = {
    "n_mels": "bins",
    "sample_rate": "rate",
    "hop_length": "hop",
    "n_fft": "n_fft",
    "win_length": "length",
    "f_min": "low",
    "f_max": "high",
}
"""Dasheng's config field -> ours."""


def qwen2_5_omni(files: AudioFiles) -> AudioProcessor:
    """Maximum length of a sound; the extractor's padding up to it is in no window."""
    return LogMelWindows(
        log_mel(files, num_mels=128),
        2 * _half_window(files, 100),
        halvings=1,
        pooled=2,
        max_seconds=int(files.extractor.get("chunk_length") or 300),
        silent_end=True,
    )


def fun_audio_chat(files: AudioFiles) -> AudioProcessor:
    """Qwen2.5-Omni's windows, in groups of states."""
    windows = LogMelWindows(
        log_mel(files, num_mels=128),
        2 * _half_window(files, 100),
        halvings=1,
        pooled=2,
        min_samples=int(files.extractor.get("n_fft") or 400),
        max_seconds=int(files.extractor.get("chunk_length") or 300),
        silent_end=True,
    )
    return GroupedWindows(windows, int(files.encoder.get("group_size") or 5))


def qwen3_omni(files: AudioFiles) -> AudioProcessor:
    """Sounds without padding, also in a single window."""
    window = 2 * _half_window(files, 50)
    return LogMelWindows(log_mel(files, num_mels=128), window, halvings=3, filled=False)


def qwen3_asr(files: AudioFiles) -> AudioProcessor:
    """At least half a second; every window is padded."""
    spectrum = log_mel(files, "Qwen3ASRFeatureExtractor", num_mels=128)
    least = files.extractor.get("min_length", 8000)
    return LogMelWindows(spectrum, 2 * _half_window(files, 50), halvings=3, min_samples=int(least))


def midasheng_lm(files: AudioFiles) -> AudioProcessor:
    """Dasheng's spectrum of a sound without padding, in windows of 10 s."""
    fields = checked(files, "Wav2Vec2FeatureExtractor", "MiDashengLMFeatureExtractor")
    config = files.config.get("audio_encoder_config") or {}
    if config.get("center") is False:
        raise ValueError("center false")
    named = {
        field: config[name] for name, field in _DECIBELS.items() if config.get(name) is not None
    }
    patch = config.get("patch_size") or [64, 4]
    size = int(patch[1] if isinstance(patch, list) else patch)
    return DecibelWindows(
        **named,
        patch=size,
        window_frames=int(config.get("target_length") or 1012) // size * size,
        stack=int(files.config.get("subsample_factor") or 5),
        normalised=bool(fields.get("do_normalize", True)),
    )


def voxtral_realtime(files: AudioFiles) -> AudioProcessor:
    """A sound padded with silence at both ends; each 80 ms correspond to one token."""
    fields = checked(files, "VoxtralRealtimeFeatureExtractor")
    loudest = fields.get("global_log_mel_max", 1.5)
    if loudest is None:
        raise ModelError("its feature extractor has no global_log_mel_max")
    around = read_streamed_speech(files.folder, files.config)
    return StreamedMel(
        LogMel(
            int(fields.get("feature_size") or 128),
            int(fields.get("n_fft") or 400),
            int(fields.get("hop_length") or 160),
            int(fields.get("sampling_rate") or 16_000),
            loudest=float(loudest),
        ),
        frames_per_token=int(files.config.get("audio_length_per_tok") or 8),
        left=around.left,
        right=around.right,
    )


def glm_asr(files: AudioFiles) -> AudioProcessor:
    """Chunks of 30 s, each padded with silence, up to 655 s."""
    seconds = int(files.extractor.get("chunk_length") or 30)
    most = int(files.processor.get("max_audio_len") or 655) // seconds
    spectrum = log_mel(files, num_mels=128)
    return LogMelChunks(
        spectrum, 4, chunk_seconds=seconds, max_chunks=most, masked=False, trimmed=True
    )


def _half_window(files: AudioFiles, default: int) -> int:
    return int(files.encoder.get("n_window") or default)
