"""Special tokens of Whisper, as its files say them."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton.protocol import ChatSpeechInfo, SpeechInfo, StreamedSpeechInfo
from baton_tokenizer.vocabulary.speech_tokens import speech_tokens

WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "vocab_size": 51_865}
ADDED = {
    "<|bos|>": 0,
    "<|endoftext|>": 10,
    "<|startoftranscript|>": 11,
    "<|en|>": 12,
    "<|yue|>": 13,
    "<|translate|>": 14,
    "<|transcribe|>": 15,
    "<|startofprev|>": 16,
    "<|nocaptions|>": 17,
    "<|notimestamps|>": 18,
}


def test_multilingual() -> None:
    generation = {
        "eos_token_id": [10, 9],
        "suppress_tokens": [1, 2],
        "max_initial_timestamp_index": 50,
    }
    found = speech_tokens(WHISPER | {"begin_suppress_tokens": [3, 10]}, generation, ADDED)
    assert isinstance(found, SpeechInfo)
    assert found.languages == {"en": 12, "yue": 13}
    assert (found.start, found.end, found.no_timestamps) == (11, 10, 18)
    assert (found.transcribe, found.translate, found.previous, found.no_speech) == (15, 14, 16, 17)
    assert (found.suppressed, found.suppressed_first) == ((1, 2), (3, 10))
    assert found.max_first_timestamp == 50
    listed = speech_tokens(WHISPER, {"lang_to_id": {"<|en|>": 12}}, ADDED)
    assert isinstance(listed, SpeechInfo) and listed.languages == {"en": 12} and listed.end == 10


def test_english_alone_and_no_speech() -> None:
    english = speech_tokens(WHISPER, {"is_multilingual": False}, ADDED)
    assert isinstance(english, SpeechInfo) and not english.languages and english.translate == -1
    assert speech_tokens(WHISPER | {"vocab_size": 51_864}, {}, ADDED) == english
    assert speech_tokens({"architectures": ["LlamaForCausalLM"]}, {}, ADDED) is None
    with pytest.raises(ModelError, match=r"<\|notimestamps\|>"):
        speech_tokens(WHISPER, {}, {k: v for k, v in ADDED.items() if "times" not in k})


def test_language_models_that_hear() -> None:
    found = speech_tokens({"architectures": ["Qwen3ASRForConditionalGeneration"]}, {}, {})
    assert isinstance(found, ChatSpeechInfo) and found.languages["yue"] == "Cantonese"
    assert found.marker in found.opening
    for stem in ("GlmAsr", "GraniteSpeech"):
        asked = speech_tokens({"architectures": [f"{stem}ForConditionalGeneration"]}, {}, {})
        assert isinstance(asked, ChatSpeechInfo) and "transcribe" in asked.request


def test_a_model_that_writes_while_it_hears() -> None:
    """Its prompt is the silence before a recording, and the delay."""
    config = {"architectures": ["VoxtralRealtimeForConditionalGeneration"]}
    added = {"<s>": 1, "[STREAMING_PAD]": 32}
    found = speech_tokens(config | {"default_num_delay_tokens": 3}, {}, added)
    assert isinstance(found, StreamedSpeechInfo)
    assert found.prompt == (1, *[32] * 35) and found.delay == 3
    own = speech_tokens(config | {"text_config": {"bos_token_id": 5}}, {}, added)
    assert isinstance(own, StreamedSpeechInfo) and (own.start, own.num_pads) == (5, 38)
    with pytest.raises(ModelError, match=r"\[STREAMING_PAD\], which every prompt of a model that"):
        speech_tokens(config, {}, {})
