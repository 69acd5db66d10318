"""Base of the requests that sample text, with vLLM's extensions."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.http.errors import invalid
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.beam_search import FIELDS, MAX_WIDTH, beams, early
from baton_gateway.schemas.fields import (
    INT32,
    INT64,
    AllowedIds,
    BadWords,
    LogitBias,
    Metadata,
    ModelName,
    Penalty,
    Processors,
    StopIds,
    StopStrings,
)
from baton_gateway.structured_output.request import CONSTRAINTS, Constraint, constraint


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False
    """With `include_usage`, every event contains the usage so far (vLLM)."""


class SpeculativeOptions(BaseModel):
    """`speculative`: number of draft tokens for this request. The output does not depend on it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    num_speculative_tokens: int = Field(ge=0, le=64)


class SampledRequest(Request):
    """Fields common to chat and completions."""

    model: ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop: StopStrings = ()
    seed: int | None = Field(default=None, ge=-INT64 - 1, le=INT64)
    logit_bias: LogitBias = {}
    user: str | None = Field(default=None, max_length=1024)
    priority: int = Field(default=0, ge=-INT32 - 1, le=INT32)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """Only requests with the same salt share cached prefixes (vLLM)."""
    metadata: Metadata = {}

    top_k: int = Field(default=0, ge=-1, le=INT32)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=10.0)
    min_tokens: int = 0
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0)
    stop_token_ids: StopIds = ()
    allowed_token_ids: AllowedIds = ()
    bad_words: BadWords = ()
    processors: Processors = {}
    speculative: SpeculativeOptions | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    """Tokens of log-probabilities are `token_id:<id>` (vLLM)."""
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=INT32)
    """Number of last tokens of the prompt that are used; -1 for as many as fit (vLLM)."""
    truncation_side: Literal["left"] = "left"
    """Prompts are cut at their beginning (vLLM)."""

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
        values = {name: getattr(self, name) for name in fields}
        return beams(values, {name: field.get_default() for name, field in fields.items()})

    @property
    def include_usage(self) -> bool:
        """True if a last event of the stream contains the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True if every event of the stream contains the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

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

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"truncate_prompt_tokens", "truncation_side"})

    def _check_common(self, most: int | None) -> None:
        _ = self.constraint, self.beams  # Raises if invalid; both are cached.
        if self.stream_options is not None and not self.stream:
            raise invalid(
                "stream_options", "The 'stream_options' parameter needs 'stream' to be true."
            )
        if self.truncate_prompt_tokens == 0:
            raise invalid(
                "truncate_prompt_tokens",
                "Invalid 'truncate_prompt_tokens': expected a positive number, or -1 for as many "
                "tokens as fit.",
            )
        if self.min_tokens < 0 or (most is not None and self.min_tokens > most):
            raise invalid(
                "min_tokens", "Invalid 'min_tokens': expected a value between 0 and 'max_tokens'."
            )
        if self.prompt_logprobs is not None and self.stream:
            raise invalid(
                "prompt_logprobs",
                "Unsupported value: 'prompt_logprobs' cannot be streamed. Leave 'stream' out.",
                "unsupported_value",
            )
