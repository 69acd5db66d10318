"""The chat request behind a message."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.fields import ManyStopStrings
from baton_gateway.schemas.tools import check_tools

_MAX_TOOLS = 1024
_MAX_NAME = 128
"""Longest name of a tool in Anthropic's API. Agents join those of a server and its tool."""


def _check_tools(value: object) -> list[dict[str, Any]]:
    return check_tools(value, most=_MAX_TOOLS, longest_name=_MAX_NAME)


class MessagesChat(ChatRequest):
    """A chat within the limits of the Messages API, which are wider than OpenAI's."""

    tools: Annotated[list[dict[str, Any]], BeforeValidator(_check_tools)] = []
    stop: ManyStopStrings = ()
