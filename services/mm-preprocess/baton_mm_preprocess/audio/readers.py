"""Reads audio processors from a checkpoint's files, by family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError
from baton_mm_preprocess.audio.conformer_spectra import (
    KaldiFeatures,
    PairedFeatures,
    UsmFeatures,
)
from baton_mm_preprocess.audio.decibel_windows import DecibelWindows
from baton_mm_preprocess.audio.grouped_windows import GroupedWindows
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.log_mel_windows import LogMelWindows
from baton_mm_preprocess.audio.spectrum import LogMel
from baton_mm_preprocess.audio.streamed_mel import StreamedMel

AudioProcessor: TypeAlias = (
    LogMelChunks
    | LogMelWindows
    | GroupedWindows
    | UsmFeatures
    | KaldiFeatures
    | PairedFeatures
    | DecibelWindows
    | StreamedMel
)
"""Converts samples to the encoder's input."""

FILES = ("preprocessor_config.json", "processor_config.json")
"""Files with settings of the feature extractor; in the second they may be nested."""
_PARTS = ("feature_extractor", "audio_processor")
"""Names of the nested part."""


@dataclass(frozen=True, slots=True)
class AudioFiles:
    """Audio settings of a checkpoint."""

    config: Mapping[str, Any]
    """config.json."""
    extractor: Mapping[str, Any]
    """The feature extractor's settings."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """processor_config.json, which may be missing."""
    folder: Path = Path()
    """Checkpoint folder."""

    @property
    def encoder(self) -> Mapping[str, Any]:
        """The encoder's part of config.json."""
        config: Mapping[str, Any] = self.config.get("audio_config") or {}
        return config


AudioReader: TypeAlias = Callable[[AudioFiles], AudioProcessor]
"""Raises `ModelError`, `KeyError`, `TypeError` or `ValueError` for invalid settings."""


def audio_files(path: Path, name: str, config: Mapping[str, Any]) -> AudioFiles:
    """Read the files of a checkpoint in the folder `path`. Raises `ModelError`."""
    processor = read_json(path / FILES[1], name) if (path / FILES[1]).is_file() else {}
    for part in _PARTS:
        if isinstance(settings := processor.get(part), Mapping):
            return AudioFiles(config, settings, processor, path)
    if not (path / FILES[0]).is_file():
        raise ModelError(f"it has no {FILES[0]}")
    return AudioFiles(config, read_json(path / FILES[0], name), processor, path)


WHISPER = "WhisperFeatureExtractor"


def checked(files: AudioFiles, *kinds: str) -> Mapping[str, Any]:
    """The settings of a feature extractor of one of these kinds. Raises `ModelError` for another
    one."""
    kind = files.extractor.get("feature_extractor_type", kinds[0])
    if kind not in kinds:
        raise ModelError(f"its feature extractor {kind} is not supported")
    return files.extractor


def log_mel(files: AudioFiles, *kinds: str, num_mels: int = 80) -> LogMel:
    """The spectrum of a `WhisperFeatureExtractor`, or of one of the equivalent `kinds`, with the
    default `num_mels`. Raises `ModelError` for another one."""
    fields = checked(files, WHISPER, *kinds)
    if fields.get("do_normalize"):
        raise ModelError("its feature extractor asks for do_normalize")
    return LogMel(
        int(fields.get("feature_size") or num_mels),
        int(fields.get("n_fft") or 400),
        int(fields.get("hop_length") or 160),
        int(fields.get("sampling_rate") or 16_000),
    )


def whisper_chunks(stack: int, *, max_chunks: int = 0, **fields: Any) -> AudioReader:
    """Chunks of Whisper's length.

    Args:
        max_chunks: maximum, unless processor_config.json has a `max_audio_len` in seconds.
        fields: others of `LogMelChunks`.
    """

    def read(files: AudioFiles) -> AudioProcessor:
        seconds = int(files.extractor.get("chunk_length") or 30)
        most = int(files.processor.get("max_audio_len") or max_chunks * seconds)
        return LogMelChunks(
            log_mel(files), stack, chunk_seconds=seconds, max_chunks=most // seconds, **fields
        )

    return read


def ultravox(files: AudioFiles) -> AudioProcessor:
    """Chunks of Whisper's length, without padding at the end of the sound."""
    stack = int(files.config.get("stack_factor") or 8)
    return whisper_chunks(stack, rounded_up=True, exact=True)(files)
