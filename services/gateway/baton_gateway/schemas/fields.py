"""Types of request fields that several APIs share. Their errors have OpenAI's code and words."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from baton_gateway.generation.bad_words import MAX_WORDS
from baton_gateway.generation.logits_processors import MAX_PROCESSORS
from baton_gateway.http.body import check_free_form
from baton_gateway.http.errors import (
    array_too_long,
    empty_array,
    empty_string,
    invalid,
    missing,
    string_too_long,
    too_many_properties,
    wrong_type,
)
from baton_gateway.schemas.unsupported import refuse_template_names

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_BIAS = 1024
MAX_STOPS, _MAX_CHAT_STOPS = 64, 4
_MAX_STOP = 1024
_MAX_STOP_IDS = 128
_MAX_ALLOWED = 4096
SOUND = "use_audio_in_video"
"""Key in `mm_processor_kwargs`: whether the sound of a video is passed to the model."""
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]{0,255}")


def _model(value: object) -> str:
    if value == "":
        raise missing("model")
    if not isinstance(value, str):
        raise wrong_type("model", "a string", value)
    if not _MODEL.fullmatch(value) or ".." in value:
        raise invalid("model", "Invalid 'model': this is not a model's name.", "model_not_found")
    return value


def _chat_stops(value: object) -> tuple[str, ...]:
    return _stops(value, _MAX_CHAT_STOPS)


def _many_stops(value: object) -> tuple[str, ...]:
    return _stops(value, MAX_STOPS)


def _stops(value: object, most: int) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > most:
        raise invalid(
            "stop",
            f"Invalid 'stop': array too long. Expected at most {most} elements, got {len(stops)}.",
            "array_above_max_length",
        )
    for stop in stops:
        if not isinstance(stop, str):
            raise wrong_type("stop", "a string or an array of strings", stop)
        if not stop:
            raise empty_string("stop")
        if len(stop) > _MAX_STOP:
            raise string_too_long("stop", _MAX_STOP)
    return tuple(stops)


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object", value)
    if len(value) > MAX_BIAS:
        raise invalid(
            "logit_bias",
            f"Invalid 'logit_bias': too many entries. Expected at most {MAX_BIAS}.",
            "array_above_max_length",
        )
    return {_bias_key(key): _bias(bias) for key, bias in value.items()}


def _bias_key(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 10):
        raise invalid("logit_bias", "Invalid 'logit_bias': its keys must be token ids.")
    return int(key)


def _bias(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type("logit_bias", "a decimal", value)
    if value > 100 or value < -100:
        above = "above_max" if value > 100 else "below_min"
        raise invalid(
            "logit_bias",
            "Invalid 'logit_bias': expected values between -100 and 100.",
            f"decimal_{above}_value",
        )
    return float(value)


def token_ids(value: object, param: str, most: int) -> tuple[int, ...]:
    """Validate a list of integers. Admission compares them with the vocabulary."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array of integers", value)
    if len(value) > most:
        raise array_too_long(param, most)
    for i, token in enumerate(value):
        if type(token) is not int:
            raise wrong_type(f"{param}[{i}]", "an integer", token)
    return tuple(value)


def _stop_ids(value: object) -> tuple[int, ...]:
    return token_ids(value, "stop_token_ids", _MAX_STOP_IDS)


def _allowed_ids(value: object) -> tuple[int, ...]:
    ids = token_ids(value, "allowed_token_ids", _MAX_ALLOWED)
    if not ids:
        raise empty_array("allowed_token_ids")
    return ids


def _bad_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type("bad_words", "an array of strings", value)
    if len(value) > MAX_WORDS:
        raise array_too_long("bad_words", MAX_WORDS)
    for i, word in enumerate(value):
        if not isinstance(word, str):
            raise wrong_type(f"bad_words[{i}]", "a string", word)
        if not word.strip(" "):
            raise invalid(f"bad_words[{i}]", "Invalid 'bad_words': empty string.", "empty_string")
        if len(word) > _MAX_STOP:
            raise invalid(
                f"bad_words[{i}]",
                f"Invalid 'bad_words': string too long. Expected at most {_MAX_STOP} characters.",
                "string_above_max_length",
            )
    return tuple(value)


def _processors(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type("processors", "an object", value)
    if len(value) > MAX_PROCESSORS:
        raise too_many_properties("processors", MAX_PROCESSORS)
    check_free_form(value, "processors")
    return value


def _template_kwargs(value: object) -> dict[str, Any]:
    """Validate the variables for a chat template. Rejects names reserved for the system."""
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object", value)
    refuse_template_names(value)
    check_free_form(value, "chat_template_kwargs")
    if len(str(value)) > 65536:
        raise invalid(
            "chat_template_kwargs",
            "Invalid 'chat_template_kwargs': too large. Expected at most 65536 characters.",
            "string_above_max_length",
        )
    return value


def _processor_kwargs(value: object) -> dict[str, bool]:
    """Validate `mm_processor_kwargs`: all other keys are settings of the operator."""
    name = "mm_processor_kwargs"
    if not isinstance(value, dict) or set(value) != {SOUND}:
        message = f"The parameter '{name}' is not allowed here, but for '{SOUND}'."
        raise invalid(name, message, "field_not_allowed")
    if not isinstance(value[SOUND], bool):
        raise wrong_type(f"{name}.{SOUND}", "a boolean", value[SOUND])
    return value


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object", value)
    if len(value) > 16:
        raise too_many_properties("metadata", 16)
    for key, item in value.items():
        if not isinstance(item, str):
            raise wrong_type("metadata", "strings as values", item)
        if len(key) > 64 or len(item) > 512:
            raise invalid(
                "metadata",
                "Invalid 'metadata': expected keys of at most 64 and values of at most 512 "
                "characters.",
                "string_above_max_length",
            )
    return value


ModelName = Annotated[str, BeforeValidator(_model)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
StopStrings = Annotated[
    tuple[str, ...], BeforeValidator(_chat_stops, json_schema_input_type=str | list[str])
]
"""As many as OpenAI's API takes."""
ManyStopStrings = Annotated[
    tuple[str, ...], BeforeValidator(_many_stops, json_schema_input_type=str | list[str])
]
"""As many as evaluations of code, and clients of Anthropic's API, send."""
LogitBias = Annotated[
    dict[int, float], BeforeValidator(_logit_bias, json_schema_input_type=dict[str, float])
]
StopIds = Annotated[tuple[int, ...], BeforeValidator(_stop_ids)]
AllowedIds = Annotated[tuple[int, ...], BeforeValidator(_allowed_ids)]
BadWords = Annotated[tuple[str, ...], BeforeValidator(_bad_words)]
Processors = Annotated[dict[str, Any], BeforeValidator(_processors)]
TemplateKwargs = Annotated[dict[str, Any], BeforeValidator(_template_kwargs)]
ProcessorKwargs = Annotated[dict[str, bool], BeforeValidator(_processor_kwargs)]
"""`mm_processor_kwargs` of a request, in which only `SOUND` may be set."""
Metadata = Annotated[dict[str, str], BeforeValidator(_metadata)]
