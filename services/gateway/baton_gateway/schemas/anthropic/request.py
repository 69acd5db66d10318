"""Requests of the Messages API.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.http.errors import UnpairedCall, invalid
from baton_gateway.schemas.anthropic.blocks import chat_messages
from baton_gateway.schemas.anthropic.chat import MessagesChat
from baton_gateway.schemas.anthropic.output_config import FORMAT, check_config, check_format
from baton_gateway.schemas.anthropic.tools import chat_choice, chat_tools
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.fields import INT32, MAX_STOPS, ModelName, TemplateKwargs
from baton_gateway.schemas.unsupported import unsupported

_UNSUPPORTED = {
    "compaction": "Ask for a summary in a message, and send it in place of the turns before it.",
    "container": "Run code yourself, as a tool.",
    "mcp_servers": "Connect to them yourself and send their tools.",
    "thread": "Send the whole conversation.",
}
"""Unsupported fields that would change the answer, with advice."""
_CHAT_NAMES = {
    "response_format": FORMAT,
    "reasoning_effort": "output_config.effort",
    ".function.name": ".name",
    ".function.parameters": ".input_schema",
}
"""Field of a chat -> field of this API, for errors."""


def _own_names(text: str) -> str:
    """Replace the names of fields of the chat by those of this API."""
    for name, renamed in _CHAT_NAMES.items():
        text = text.replace(name, renamed)
    return text


StopSequence = Annotated[str, Field(min_length=1)]


class Metadata(BaseModel):
    """`metadata`"""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    user_id: str | None = Field(default=None, max_length=1024)


class Thinking(BaseModel):
    """`thinking`"""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    type: Literal["enabled", "adaptive", "disabled"]
    """"adaptive" lets the model decide how much it thinks."""
    budget_tokens: int | None = Field(default=None, ge=1, le=INT32)

    @property
    def budget(self) -> int | None:
        """Maximum tokens of thinking; None: as many as `max_tokens` allows.

        "disabled" means 0: some templates begin thinking unconditionally.
        """
        if self.type == "disabled":
            return 0
        return self.budget_tokens if self.type == "enabled" else None


class CountTokensRequest(Request):
    """POST /v1/messages/count_tokens: the fields that determine the prompt."""

    model: ModelName
    messages: Any
    system: Any = None
    tools: Any = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: Annotated[dict[str, Any] | None, BeforeValidator(check_config)] = None
    output_format: Annotated[dict[str, Any] | None, BeforeValidator(check_format)] = None
    """The older name of `output_config.format`."""
    chat_template_kwargs: TemplateKwargs = {}
    """Further variables of the chat template (vLLM)."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        for name, advice in _UNSUPPORTED.items():
            if value.get(name):
                raise unsupported(name, advice)
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ = self.chat  # Raises if invalid; the result is cached.
        return self

    @cached_property
    def chat(self) -> MessagesChat:
        """Return the equivalent chat request. Raises `InvalidRequest`."""
        try:
            return build(self._fields(), MessagesChat)
        except UnpairedCall:
            raise
        except InvalidRequest as error:
            message, param = _own_names(error.message), _own_names(error.param or "")
            raise InvalidRequest(message, code=error.code, param=param or None) from error

    def _fields(self) -> dict[str, Any]:
        messages = chat_messages(self.system, self.messages)
        fields: dict[str, Any] = {"model": self.model, "messages": messages}
        if messages[-1]["role"] == "assistant":
            fields["continue_final_message"] = True
        if self.tools:
            fields["tools"] = chat_tools(self.tools)
        if self.tool_choice is not None:
            fields |= chat_choice(self.tool_choice)
        template_kwargs = self.chat_template_kwargs
        if self.thinking is not None:
            enabled = self.thinking.type != "disabled"
            template_kwargs = {"enable_thinking": enabled} | template_kwargs
            fields["thinking_token_budget"] = self.thinking.budget
        if effort := (self.output_config or {}).get("effort"):
            fields["reasoning_effort"] = effort
        return fields | {"chat_template_kwargs": template_kwargs} | self._response_format()

    def _response_format(self) -> dict[str, Any]:
        form = (self.output_config or {}).get("format") or self.output_format
        if form is None:
            return {}
        schema = {"name": "output", "schema": form["schema"]}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages"""

    max_tokens: int = Field(ge=1, le=INT32)
    stream: bool = False
    stop_sequences: Annotated[list[StopSequence], Field(max_length=MAX_STOPS)] = []
    temperature: float = Field(default=1.0, ge=0.0, le=1.0)
    top_p: float = Field(default=1.0, ge=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=INT32)
    metadata: Metadata = Metadata()
    priority: int = Field(default=0, ge=-INT32 - 1, le=INT32)
    """As in vLLM: lower values run first."""
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    """Only requests with the same salt share cached prefixes (vLLM)."""

    def _fields(self) -> dict[str, Any]:
        budget = self.thinking.budget if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise invalid(
                "thinking.budget_tokens",
                "Invalid 'thinking.budget_tokens': it must be below 'max_tokens'.",
            )
        same = ("max_tokens", "stream", "temperature", "top_p", "top_k", "priority", "cache_salt")
        fields = super()._fields() | {
            name: getattr(self, name) for name in same if name in self.model_fields_set
        }
        return fields | {"stop": self.stop_sequences, "user": self.metadata.user_id}
