"""Fields of forms with recordings: OpenAI's codes, and the field by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.audio.speech_request import (
    TranscriptionRequest,
    TranslationRequest,
    form_fields,
)


def read(*items: tuple[str, str]) -> TranscriptionRequest:
    body = build(form_fields([("model", "m"), *items]), TranscriptionRequest, strict=True)
    body.check()
    return body


def test_fields_of_a_form_are_text() -> None:
    body = read(
        ("stream", "true"),
        ("temperature", "0.5"),
        ("seed", "7"),
        ("language", "en"),
        ("include[]", "logprobs"),
        ("max_completion_tokens", "9"),
    )
    assert (body.stream, body.temperature, body.seed, body.asks_logprobs) == (True, 0.5, 7, True)
    timed = read(("response_format", "verbose_json"), ("timestamp_granularities[]", "segment"))
    assert timed.timed and timed.timestamp_granularities == ("segment",)


def test_what_cannot_be_is_refused_by_name() -> None:
    cases: tuple[tuple[str, str, str, str], ...] = (
        ("temperature", "1.1", "decimal_above_max_value", "temperature"),
        ("temperature", "nan", "invalid_value", "temperature"),
        ("language", "x" * 1024, "string_above_max_length", "language"),
        ("prompt", "x" * 20_000, "string_above_max_length", "prompt"),
        ("response_format", "exe", "invalid_value", "response_format"),
        ("timestamp_granularities[]", "foo", "invalid_value", "timestamp_granularities[][0]"),
        ("timestamp_granularities[]", "word", "invalid_value", "timestamp_granularities[]"),
        ("timestamp_granularities[]", "segment", "invalid_value", "timestamp_granularities[]"),
        ("chunking_strategy", "{}", "invalid_value", "chunking_strategy"),
        ("known_speaker_names[]", "A", "unsupported_parameter", "known_speaker_names[]"),
        ("model", "n", "invalid_value", "model"),
        ("colour", "red", "unknown_parameter", "colour"),
    )
    for name, value, code, param in cases:
        with pytest.raises(InvalidRequest) as refused:
            read((name, value))
        assert [refused.value.code, refused.value.param] == [code, param]
    for together, param in (
        ((("stream", "true"), ("response_format", "srt")), "stream"),
        ((("include[]", "logprobs"), ("response_format", "text")), "include[]"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            read(*together)
        assert refused.value.param == param


def test_translations_are_into_english() -> None:
    given: dict[str, Any] = {"model": "m", "to_language": "de"}
    with pytest.raises(InvalidRequest) as refused:
        build(given, TranslationRequest)
    assert refused.value.param == "to_language"
