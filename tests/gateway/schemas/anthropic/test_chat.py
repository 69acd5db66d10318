"""The limits of the Messages API, where they are not those of chats."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.anthropic.request import MessagesRequest

USER = {"role": "user", "content": "hi"}


def ask(**fields: Any) -> MessagesRequest:
    return build({"model": "m", "messages": [USER], "max_tokens": 9} | fields, MessagesRequest)


def test_agents_send_more_than_openai_takes() -> None:
    """Many servers of tools, whose names stand before those of the tools."""
    tools = [{"name": f"mcp__{i:0>120}", "input_schema": {"type": "object"}} for i in range(1025)]
    stops = [f"stop {i}" for i in range(65)]
    chat = ask(tools=tools[:1024], stop_sequences=stops[:64]).chat
    assert len(chat.tools) == 1024 and len(chat.stop) == 64
    for fields, param in (
        ({"tools": tools}, "tools"),
        ({"tools": [tools[0] | {"name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [tools[0] | {"input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": [tools[0]] * 2}, "tools[1].name"),
        ({"stop_sequences": stops}, "stop_sequences"),
        ({"output_config": {"effort": "most"}}, "output_config.effort"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            ask(**fields)
        assert caught.value.param == param
