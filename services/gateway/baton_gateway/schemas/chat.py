"""Request of OpenAI's chat API, with vLLM's extensions.

https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.chat_messages import check_messages
from baton_gateway.schemas.fields import INT32, SOUND, ProcessorKwargs, TemplateKwargs
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.schemas.tools import check_choice, check_tools, chosen, only_allowed
from baton_gateway.structured_output.request import Constraint

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_ONLY_COMPLETIONS = ("echo", "best_of", "suffix")


class PredictionPart(BaseModel):
    """A part of the text of `prediction`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    type: Literal["text"]
    text: str


class Prediction(BaseModel):
    """`prediction`: the expected answer, such as a file that is to be edited."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    type: Literal["content"]
    content: str | list[PredictionPart]

    @property
    def text(self) -> str:
        """The expected text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(SampledRequest):
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
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort, passed to the chat template; "none" turns thinking off."""
    thinking_token_budget: int | None = Field(default=None, ge=0, le=INT32)
    """Most tokens of thinking (vLLM)."""
    include_reasoning: bool = True
    """Whether the answer contains the thinking (vLLM)."""
    verbosity: Any = None
    prediction: Prediction | None = None
    store: bool = False
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: str | None = Field(default=None, max_length=64)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs = {}
    mm_processor_kwargs: ProcessorKwargs = {}
    """`use_audio_in_video`: whether the model also gets the sound of videos (vLLM)."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        for name in _ONLY_COMPLETIONS:
            if value.get(name):
                raise invalid(name, f"Unknown parameter: '{name}'.", "unknown_parameter")
        return only_allowed(value)

    @model_validator(mode="after")
    def _check(self) -> Self:
        limits = (self.max_tokens, self.max_completion_tokens)
        if None not in limits and limits[0] != limits[1]:
            raise invalid("max_tokens", "'max_tokens' and 'max_completion_tokens' must not differ.")
        check_choice(self.tool_choice, self.tools)
        self._check_common(self.limit)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
        if self.thinking_token_budget is not None and self.beams is not None:
            raise invalid(
                "thinking_token_budget",
                "Unsupported value: 'thinking_token_budget' cannot be used "
                "with beam search. Leave one of them out.",
                "unsupported_value",
            )
        if self.add_generation_prompt and self.continue_final_message:
            self._check_continue()
        return self

    def _check_continue(self) -> None:
        if "add_generation_prompt" in self.model_fields_set:
            raise invalid(
                "continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' must not both be true.",
            )

    @cached_property
    def constraint(self) -> Constraint | None:
        """The constraint of the output, or None. A `response_format` applies to messages, so an
        answer that must be a call has none."""
        constraint = super().constraint
        if constraint is None or chosen(self.tool_choice, self.tools) in ("none", "auto"):
            return constraint
        return None if constraint.is_of_message else constraint

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template. The client's variables take precedence over the
        effort."""
        if self.reasoning_effort is None:
            return self.chat_template_kwargs
        kwargs: dict[str, Any] = {"reasoning_effort": self.reasoning_effort}
        if self.reasoning_effort == "none":
            kwargs |= {"enable_thinking": False, "thinking": False}
        return kwargs | self.chat_template_kwargs

    @property
    def sound(self) -> bool | None:
        """Whether the model gets the sound of videos; None means the operator's setting."""
        return self.mm_processor_kwargs.get(SOUND)

    @classmethod
    def _special(cls) -> frozenset[str]:
        return super()._special() | {"mm_processor_kwargs", "thinking_token_budget"}

    @property
    def limit(self) -> int | None:
        """Maximum tokens to generate, from `max_completion_tokens` or `max_tokens`."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens
