"""Request of OpenAI's Responses API, with vLLM's extensions.

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.http.errors import invalid
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.field_access import field_of
from baton_gateway.schemas.fields import INT32, Metadata, ModelName
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.include_query import Include
from baton_gateway.schemas.responses.input_items import Conversation, Item, input_items
from baton_gateway.schemas.responses.namespaces import Tool, ToolNames
from baton_gateway.schemas.responses.text_config import chat_format, text_config
from baton_gateway.schemas.responses.tools import (
    chat_choice,
    chat_tools,
    demanded_grammar,
    response_tools,
)
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.schemas.unsupported import unsupported

_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_UNSUPPORTED = {
    "context_management": "Use 'truncation'.",
    "prompt": "Send its text as 'instructions' and 'input'.",
    "structured_outputs": "Use 'text.format', or a custom tool with a grammar.",
}
"""Unsupported fields that would change the answer, with advice."""

_OWN_FIELDS = {"metadata", "model", "stream_options"}
"""Fields that a chat request also has, but this API handles itself."""
_CHAT_FIELDS = {"chat_template_kwargs", "parallel_tool_calls"}
"""Fields with the same meaning in a chat request, besides those of all sampled requests."""
_REPEATED = (
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "store",
    "temperature",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)
_CHAT_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "structured_outputs.grammar": "tools",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
}
"""Field of a chat -> field of this API, for errors."""


def _conversation(value: object) -> object:
    """Return the id of a conversation, which may be given as an object."""
    return field_of(value, "id", "conversation") if isinstance(value, dict) else value


class ReasoningConfig(BaseModel):
    """`reasoning`. Thinking is returned unchanged, without summaries."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(BaseModel):
    """`stream_options`"""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    include_obfuscation: bool = False
    """Accepted; events are never padded."""


class ResponsesRequest(Request):
    """POST /v1/responses"""

    model: ModelName
    input: Annotated[
        list[Item], BeforeValidator(input_items, json_schema_input_type=str | list[Item])
    ]
    instructions: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation: Annotated[str | None, BeforeValidator(_conversation)] = None
    include: Annotated[list[Include], Field(max_length=16)] = []
    max_output_tokens: int | None = Field(default=None, ge=1, le=INT32)
    max_tool_calls: int | None = Field(default=None, ge=1, le=INT32)
    """Limits hosted tools, which are not supported."""
    metadata: Metadata = {}
    parallel_tool_calls: bool = True
    reasoning: ReasoningConfig = ReasoningConfig()
    service_tier: str | None = None
    text: Annotated[dict[str, Any], BeforeValidator(text_config)] = {"format": {"type": "text"}}
    tools: Annotated[list[Tool], BeforeValidator(response_tools)] = []
    tool_choice: Any = "auto"
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    top_logprobs: int = Field(default=0, ge=0, le=20)
    truncation: Literal["auto", "disabled"] = "disabled"
    user: str | None = None
    safety_identifier: str | None = Field(default=None, max_length=128)
    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None

    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: Any = None
    seed: Any = None
    logit_bias: Any = None
    priority: Any = None
    cache_salt: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    min_tokens: Any = None
    stop_token_ids: Any = None
    ignore_eos: Any = None
    skip_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    include_reasoning: Literal[True] = True
    chat_template_kwargs: Any = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        for name, advice in _UNSUPPORTED.items():
            if value.get(name):
                raise unsupported(name, advice)
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_logprobs and _LOGPROBS not in self.include:
            raise invalid("top_logprobs", f"'top_logprobs' needs '{_LOGPROBS}' in 'include'.")
        if self.background and not self.store:
            raise invalid("background", "'background' needs 'store' to be true.")
        if self.conversation is not None and self.previous_response_id is not None:
            raise invalid(
                "previous_response_id",
                "'previous_response_id' and 'conversation' cannot be used "
                "together: leave one of them out.",
            )
        return self

    def chat(self, history: list[Item], items: list[Item], owner: str = "") -> ResponseChat:
        """Return the equivalent chat request. Raises `InvalidRequest`.

        Args:
            history: items of the conversation so far.
            items: the input, without references and encrypted thinking.
            owner: tenant that owns the response.
        """
        conversation = Conversation(self.instructions, self.tool_names)
        conversation.add(history, "conversation")
        conversation.add(items)
        fields = self._chat_fields(conversation)
        if _ENCRYPTED in self.include:
            fields["encrypt_for"] = owner
        try:
            return build(fields, ResponseChat)
        except InvalidRequest as error:
            raise _with_own_name(error) from error

    def _chat_fields(self, conversation: Conversation) -> dict[str, Any]:
        choice, tools = chat_choice(self.tool_choice, self.tool_names)
        shared = SampledRequest.model_fields.keys() - _OWN_FIELDS | _CHAT_FIELDS
        set_fields = [name for name in type(self).model_fields if name in self.model_fields_set]
        fields = {name: getattr(self, name) for name in set_fields if name in shared}
        fields = {name: value for name, value in fields.items() if value is not None}
        fields |= {
            "model": self.model,
            "messages": conversation.finish(),
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "response": self.repeated,
            **chat_format(self.text),
        }
        if tools:
            fields |= {"tools": chat_tools(tools), "tool_choice": choice}
            if (tool := demanded_grammar(choice, tools)) is not None:
                grammar = {"grammar": tool["format"]["definition"]}
                fields |= {"tool_choice": "none", "structured_outputs": grammar}
                fields["input_of"] = tool["name"]
        if _LOGPROBS in self.include:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return fields

    @property
    def tool_names(self) -> ToolNames:
        """The tools under their model names."""
        return ToolNames(self.tools)

    @property
    def repeated(self) -> dict[str, Any]:
        """The request fields that a response repeats."""
        return {name: getattr(self, name) for name in _REPEATED} | {
            "conversation": None if self.conversation is None else {"id": self.conversation},
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "text": self.text,
            "tool_choice": self.tool_choice,
            "tools": self.tools,
        }


def own_name(param: str) -> str:
    """Return the path of a field of this API for that of a field of the chat."""
    for name, renamed in _CHAT_NAMES.items():
        if param == name or param.startswith((f"{name}.", f"{name}[")):
            return renamed + param.removeprefix(name)
    return param


def _with_own_name(error: InvalidRequest) -> InvalidRequest:
    """Convert an error about a field of the chat to one about a field of this API."""
    message, param = error.message, error.param
    for name, renamed in _CHAT_NAMES.items():
        message = message.replace(f"'{name}", f"'{renamed}")
    param = None if param is None else own_name(param)
    return InvalidRequest(message, code=error.code, param=param, status=error.status)
