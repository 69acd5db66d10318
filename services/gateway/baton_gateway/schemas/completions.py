"""Request of OpenAI's completions API, with vLLM's extensions.

https://platform.openai.com/docs/api-reference/completions/create
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from baton_gateway.http.errors import array_too_long, empty_array, invalid, wrong_type
from baton_gateway.schemas.fields import INT32, ManyStopStrings, token_ids
from baton_gateway.schemas.sampled_request import SampledRequest

MAX_PROMPTS = 2048
PromptField = str | list[str] | list[int] | list[list[int]]
"""JSON types of `prompt`."""


def _prompt(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Return a tuple of prompts, each text or ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string or an array", value)
    if not value:
        raise empty_array("prompt")
    if isinstance(value[0], str | list):
        return _prompts(value)
    # Validate an oversized list in one pass; admission compares its length with the model's.
    return (token_ids(value, "prompt", len(value)),)


def _prompts(values: list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if len(values) > MAX_PROMPTS:
        raise array_too_long("prompt", MAX_PROMPTS)
    kind = type(values[0])
    for i, value in enumerate(values):
        if type(value) is not kind:
            raise wrong_type(f"prompt[{i}]", "the same type as the first element", value)
        if value == []:
            raise empty_array(f"prompt[{i}]")
    if kind is str:
        return tuple(values)
    return tuple(token_ids(value, f"prompt[{i}]", len(value)) for i, value in enumerate(values))


class CompletionRequest(SampledRequest):
    """POST /v1/completions"""

    prompt: Annotated[tuple[Any, ...], BeforeValidator(_prompt, json_schema_input_type=PromptField)]
    max_tokens: int = Field(default=16, ge=0, le=INT32)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    stop: ManyStopStrings = ()
    echo: bool = False
    best_of: int | None = Field(default=None, ge=0, le=20)
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_common(self.max_tokens)
        if self.echo and self.truncate_prompt_tokens is not None:
            raise invalid(
                "truncate_prompt_tokens",
                "Unsupported value: 'truncate_prompt_tokens' cannot be used with 'echo'. Send the "
                "end of the prompt.",
                "unsupported_value",
            )
        if self.best_of is not None:
            self._check_best_of(self.best_of)
        return self

    def _check_best_of(self, best_of: int) -> None:
        if best_of < self.n or (self.stream and best_of > self.n):
            raise invalid("best_of", "Invalid 'best_of': expected 'n' or more, without 'stream'.")

    @classmethod
    def _special(cls) -> frozenset[str]:
        return super()._special() | {"add_special_tokens"}

    @property
    def candidates(self) -> int:
        """Number of choices to generate per prompt; the best `n` are returned."""
        return max(self.n, self.best_of or 0)
