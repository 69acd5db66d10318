"""OpenAI request schemas, with the limits of the published specification and vLLM's extensions."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from baton_gateway.generation.bad_words import MAX_WORDS
from baton_gateway.generation.logits_processors import MAX_PROCESSORS
from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.http.body import check_depth
from baton_gateway.http.errors import invalid, missing, wrong_type
from baton_gateway.schemas.beam_search import (
    FIELDS,
    MAX_WIDTH,
    beams,
    early,
)
from baton_gateway.schemas.messages import check_messages
from baton_gateway.schemas.tools import check_choice, check_tools
from baton_gateway.schemas.unsupported import refuse, refuse_template_names
from baton_gateway.structured_output.request import (
    CONSTRAINTS,
    Constraint,
    constraint,
)

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_BIAS = 1024
MAX_PROMPTS = 2048
_MAX_STOP = 1024
_MAX_STOP_IDS = 128
_MAX_ALLOWED = 4096
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]{0,255}")
_CHAT_ONLY_ABSENT = ("echo", "best_of", "suffix")


def _model(value: object) -> str:
    if value == "":
        raise missing("model")
    if not isinstance(value, str):
        raise wrong_type("model", "a string", value)
    if not _MODEL.fullmatch(value) or ".." in value:
        raise invalid("model", "Invalid 'model': this is not a model's name.", "model_not_found")
    return value


def _stop(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or an array of strings", value)
    if len(stops) > 4:
        raise invalid(
            "stop",
            f"Invalid 'stop': array too long. Expected at most 4 elements, got {len(stops)}.",
            "array_above_max_length",
        )
    for stop in stops:
        if not isinstance(stop, str):
            raise wrong_type("stop", "a string or an array of strings", stop)
        if not stop:
            raise invalid("stop", "Invalid 'stop': empty string.", "empty_string")
        if len(stop) > _MAX_STOP:
            raise invalid(
                "stop",
                f"Invalid 'stop': string too long. Expected at most {_MAX_STOP} characters.",
                "string_above_max_length",
            )
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


def _ids(value: object, param: str, most: int) -> tuple[int, ...]:
    """Validate a list of integers. Admission compares them with the vocabulary."""
    if not isinstance(value, list):
        raise wrong_type(param, "an array of integers", value)
    if len(value) > most:
        raise invalid(
            param,
            f"Invalid '{param}': array too long. Expected at most {most} elements.",
            "array_above_max_length",
        )
    for i, token in enumerate(value):
        if type(token) is not int:
            raise wrong_type(f"{param}[{i}]", "an integer", token)
    return tuple(value)


def _stop_ids(value: object) -> tuple[int, ...]:
    return _ids(value, "stop_token_ids", _MAX_STOP_IDS)


def _allowed_ids(value: object) -> tuple[int, ...]:
    ids = _ids(value, "allowed_token_ids", _MAX_ALLOWED)
    if not ids:
        raise _empty("allowed_token_ids")
    return ids


def _bad_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type("bad_words", "an array of strings", value)
    if len(value) > MAX_WORDS:
        raise invalid(
            "bad_words",
            f"Invalid 'bad_words': array too long. Expected at most {MAX_WORDS} elements.",
            "array_above_max_length",
        )
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
        raise invalid(
            "processors",
            f"Invalid 'processors': too many properties. Expected at most {MAX_PROCESSORS}.",
            "object_above_max_properties",
        )
    check_depth(value, "processors")
    return value


def _prompt(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Return a tuple of prompts, each text or ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise _empty("prompt")
    if isinstance(value[0], str | list):
        return _prompts(value)
    # Validate an oversized list in one pass; admission compares its length with the model's.
    return (_ids(value, "prompt", len(value)),)


def _prompts(values: list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if len(values) > MAX_PROMPTS:
        raise invalid(
            "prompt",
            f"Invalid 'prompt': array too long. Expected at most {MAX_PROMPTS} elements.",
            "array_above_max_length",
        )
    kind = type(values[0])
    for i, value in enumerate(values):
        if type(value) is not kind:
            raise wrong_type(f"prompt[{i}]", "the same type as the first element", value)
        if value == []:
            raise _empty(f"prompt[{i}]")
    if kind is str:
        return tuple(values)
    return tuple(_ids(value, f"prompt[{i}]", len(value)) for i, value in enumerate(values))


def _empty(param: str) -> Exception:
    return invalid(param, f"Invalid '{param}': empty array.", "empty_array")


def _detokenize_ids(value: object) -> tuple[int, ...]:
    return _ids(value, "tokens", 1_000_000)


def check_kwargs(value: object) -> dict[str, Any]:
    """Validate the variables for a chat template. Rejects names reserved for the system."""
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object", value)
    refuse_template_names(value)
    check_depth(value, "chat_template_kwargs")
    if len(str(value)) > 65536:
        raise invalid(
            "chat_template_kwargs",
            "Invalid 'chat_template_kwargs': too large. Expected at most 65536 characters.",
            "string_above_max_length",
        )
    return value


def _metadata(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object", value)
    if len(value) > 16:
        raise invalid(
            "metadata",
            "Invalid 'metadata': too many properties. Expected at most 16.",
            "object_above_max_properties",
        )
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


Model = Annotated[str, BeforeValidator(_model)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]


class Request(BaseModel):
    """Base of all requests: strict JSON types, null means the default, names are checked."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, value: Any) -> Any:
        refuse(value)
        return {k: v for k, v in value.items() if v is not None or k in cls._not_null()}

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"model"})


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    include_usage: bool = False
    include_obfuscation: bool = False


class Sampled(Request):
    """Fields common to chat and completions."""

    model: Model
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop)] = ()
    seed: int | None = Field(default=None, ge=-INT64 - 1, le=INT64)
    logit_bias: Annotated[dict[int, float], BeforeValidator(_logit_bias)] = {}
    user: str | None = Field(default=None, max_length=1024)
    priority: int = Field(default=0, ge=-INT32 - 1, le=INT32)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """Only requests with the same salt share cached prefixes (vLLM)."""
    metadata: Annotated[dict[str, str], BeforeValidator(_metadata)] = {}

    top_k: int = Field(default=0, ge=-1, le=INT32)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    min_tokens: int = 0
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0)
    stop_token_ids: Annotated[tuple[int, ...], BeforeValidator(_stop_ids)] = ()
    allowed_token_ids: Annotated[tuple[int, ...], BeforeValidator(_allowed_ids)] = ()
    bad_words: Annotated[tuple[str, ...], BeforeValidator(_bad_words)] = ()
    processors: Annotated[dict[str, Any], BeforeValidator(_processors)] = {}
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    return_token_ids: bool = False

    use_beam_search: bool = False
    beam_width: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    length_penalty: float = Field(default=1.0, ge=-10.0, le=10.0)
    early_stopping: Annotated[bool | Literal["never"], BeforeValidator(early)] = False

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    @cached_property
    def constraint(self) -> Constraint | None:
        """The constraint of the output, or None."""
        return constraint({name: getattr(self, name) for name in CONSTRAINTS})

    @cached_property
    def beams(self) -> BeamSearchOptions | None:
        """The beam search options, or None."""
        if self.model_fields_set.isdisjoint(FIELDS):
            return None
        fields = type(self).model_fields
        given = {name: getattr(self, name) for name in fields}
        return beams(given, {name: field.get_default() for name, field in fields.items()})

    @property
    def at_once(self) -> int:
        """Number of sequences per prompt that run concurrently."""
        return max(self.candidates, self.beams.width if self.beams else 0)

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"model", "stream", "messages", "prompt"})

    @property
    def candidates(self) -> int:
        """Number of choices to generate per prompt."""
        return self.n

    def _check_common(self, most: int | None) -> None:
        _ = self.constraint, self.beams  # raises when invalid; both are cached
        if self.stream_options is not None and not self.stream:
            raise invalid(
                "stream_options", "The 'stream_options' parameter needs 'stream' to be true."
            )
        if self.min_tokens < 0 or (most is not None and self.min_tokens > most):
            raise invalid(
                "min_tokens", "Invalid 'min_tokens': expected a value between 0 and 'max_tokens'."
            )
        if self.prompt_logprobs is not None and self.stream:
            raise invalid(
                "prompt_logprobs",
                "Unsupported value: 'prompt_logprobs' cannot be streamed.",
                "unsupported_value",
            )


class ChatRequest(Sampled):
    """POST /v1/chat/completions"""

    messages: Annotated[list[dict[str, Any]], BeforeValidator(check_messages)]
    max_tokens: int | None = Field(default=None, ge=1, le=INT32)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[dict[str, Any]], BeforeValidator(check_tools)] = []
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] = ["text"]
    reasoning_effort: Any = None
    verbosity: Any = None
    store: bool = False
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=64)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(check_kwargs)] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_completions(cls, value: Any) -> Any:
        for name in _CHAT_ONLY_ABSENT:
            if name in value:
                raise invalid(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' must not differ.")
        self._check_common(self.limit)
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
        check_choice(self.tool_choice, self.tools)
        if self.add_generation_prompt and self.continue_final_message:
            self._check_continue()
        return self

    def _check_continue(self) -> None:
        if "add_generation_prompt" in self.model_fields_set:
            raise invalid(
                "continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' must not both be true.",
            )

    @property
    def limit(self) -> int | None:
        """Most tokens to generate, from `max_completion_tokens` or `max_tokens`."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens


class CompletionRequest(Sampled):
    """POST /v1/completions"""

    prompt: Annotated[tuple[Any, ...], BeforeValidator(_prompt)]
    max_tokens: int = Field(default=16, ge=0, le=INT32)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: bool = False
    best_of: int | None = Field(default=None, ge=0, le=20)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_common(self.max_tokens)
        if self.best_of is not None:
            self._check_best_of(self.best_of)
        return self

    def _check_best_of(self, best_of: int) -> None:
        if best_of < self.n or (self.stream and best_of > self.n):
            raise invalid("best_of", "Invalid 'best_of': expected 'n' or more, without 'stream'.")

    @property
    def candidates(self) -> int:
        """Number of choices to generate per prompt; the best `n` are returned."""
        return max(self.n, self.best_of or 0)


class TokenizeRequest(Request):
    """POST /tokenize (vLLM): a prompt or messages."""

    model: Model | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, BeforeValidator(check_messages)] = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(check_kwargs)] = {}
    tools: Annotated[list[dict[str, Any]], BeforeValidator(check_tools)] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise missing("prompt")
        if self.prompt is not None and self.messages is not None:
            raise invalid("prompt", "Send either 'prompt' or 'messages', not both.")
        return self

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset()


class DetokenizeRequest(Request):
    """POST /detokenize"""

    model: Model | None = None
    tokens: Annotated[tuple[int, ...], BeforeValidator(_detokenize_ids)]
    skip_special_tokens: bool = False

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"tokens"})
