"""Prompt information of speech-to-text models, from a checkpoint's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.checkpoint.streamed_speech import ARCHITECTURES, read_streamed_speech
from baton.errors import ModelError
from baton.protocol import AnySpeechInfo, ChatSpeechInfo, SpeechInfo, StreamedSpeechInfo

_WHISPER = "WhisperForConditionalGeneration"
_STREAMING_PAD = "[STREAMING_PAD]"
_QWEN3_LANGUAGES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fil": "Filipino",
    "fr": "French",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
    "yue": "Cantonese",
    "zh": "Chinese",
}
"""Language names used in training."""
_CHATS = {
    "GlmAsrForConditionalGeneration": ChatSpeechInfo(
        request="Please transcribe this audio into text"
    ),
    "GraniteSpeechForConditionalGeneration": ChatSpeechInfo(
        request="can you transcribe the speech into a written format?"
    ),
    "Qwen3ASRForConditionalGeneration": ChatSpeechInfo(
        _QWEN3_LANGUAGES, "language {language}<asr_text>", "<asr_text>"
    ),
}
"""Language models with audio input, by architecture."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_MULTILINGUAL = 51_865
"""Size of the smallest multilingual vocabulary; the English one has one token less."""


def speech_tokens(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    added: Mapping[str, int],
    folder: Path = Path(),
) -> AnySpeechInfo | None:
    """The prompt information of a speech-to-text model, by special tokens or by a conversation;
    None for any other model.

    Args:
        config: content of config.json.
        generation: content of generation_config.json; older checkpoints have its fields in
            config.json.
        added: ids of the added tokens by text.
        folder: of the checkpoint.

    Raises:
        ModelError: the vocabulary lacks a token that every prompt contains.
    """
    names = config.get("architectures") or ()
    if any(name in ARCHITECTURES for name in names):
        return _streamed(config, generation, added, folder)
    if _WHISPER not in names:
        return next((_CHATS[name] for name in names if name in _CHATS), None)
    fields = {**config, **generation}
    multilingual = fields.get("is_multilingual", config.get("vocab_size", 0) >= _MULTILINGUAL)
    return SpeechInfo(
        start=_needed("<|startoftranscript|>", added),
        end=_end(fields, added),
        no_timestamps=_needed("<|notimestamps|>", added),
        languages=_languages(generation, added) if multilingual else {},
        transcribe=added.get("<|transcribe|>", -1),
        translate=added.get("<|translate|>", -1) if multilingual else -1,
        previous=added.get("<|startofprev|>", -1),
        no_speech=added.get("<|nospeech|>", added.get("<|nocaptions|>", -1)),
        suppressed=tuple(fields.get("suppress_tokens") or ()),
        suppressed_first=tuple(fields.get("begin_suppress_tokens") or ()),
        max_first_timestamp=_number(generation.get("max_initial_timestamp_index")),
    )


def _streamed(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    added: Mapping[str, int],
    folder: Path,
) -> StreamedSpeechInfo:
    """Prompt information of a streaming speech model."""
    text = config.get("text_config") or {}
    candidates = generation.get("bos_token_id"), text.get("bos_token_id"), added.get("<s>"), 1
    start = next(token for token in candidates if isinstance(token, int))
    pad = _needed(_STREAMING_PAD, added, "a model that writes while it reads audio")
    around = read_streamed_speech(folder, config)
    return StreamedSpeechInfo(start, pad, around.num_pads, around.delay)


def _languages(generation: Mapping[str, Any], added: Mapping[str, int]) -> dict[str, int]:
    """Language tokens by code, from the checkpoint's list, or else by the form of the tokens after
    the start of a transcript."""
    listed, start = generation.get("lang_to_id") or added, _needed("<|startoftranscript|>", added)
    matches = ((_LANGUAGE.fullmatch(text), token) for text, token in listed.items())
    return {match[1]: token for match, token in matches if match and token > start}


def _end(fields: Mapping[str, Any], added: Mapping[str, int]) -> int:
    """The end-of-sequence id; the first one of several."""
    ends = fields.get("eos_token_id")
    first = ends[0] if isinstance(ends, list) and ends else ends
    return first if isinstance(first, int) else _needed("<|endoftext|>", added)


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _needed(text: str, added: Mapping[str, int], model: str = _WHISPER) -> int:
    if text not in added:
        raise ModelError(
            f"The tokenizer has no token {text}, which every prompt of {model} has. Take the "
            "tokenizer of the checkpoint."
        )
    return added[text]
