"""Requests of the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.request import ResponsesRequest

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def asked(**fields: Any) -> ResponsesRequest:
    return build({"model": "m", "input": "hi"} | fields, ResponsesRequest)


def chat_of(**fields: Any) -> ResponseChat:
    request = asked(**fields)
    return request.chat([], request.input)


def test_a_chat_asks_for_the_same() -> None:
    fields = {"max_output_tokens": 9, "top_k": 3, "stop": ["a"], "user": "u", "stream": True}
    request = asked(
        **fields,
        instructions="s",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    chat = request.chat([], request.input)
    assert (chat.limit, chat.top_k, chat.stop, chat.user) == (9, 3, ("a",), "u")
    assert chat.stream and chat.logprobs and chat.top_logprobs == 2
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("required", False)
    assert chat.response["tools"][0]["name"] == "f" and chat.response["instructions"] == "s"


def test_the_format_of_the_text_constrains_it() -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    constraint = chat_of(text={"format": form}).constraint
    assert constraint is not None and constraint.grammar.kind == "json_schema"


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"background": True, "store": False}, "background", "'store'"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"conversation": {}}, "conversation.id", "Missing"),
        (
            {"previous_response_id": "resp_1", "conversation": "conv_1"},
            "previous_response_id",
            "together",
        ),
        ({"include": ["x"]}, "include[0]", "Supported"),
        ({"top_logprobs": 1}, "top_logprobs", "include"),
        ({"truncation": "some"}, "truncation", "disabled"),
        ({"max_output_tokens": 0}, "max_output_tokens", "minimum"),
        ({"stop": 5}, "stop", "string"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "'text.format.schema'",
        ),
        ({"tool_choice": "required"}, None, None),
    ],
)
def test_errors_are_about_fields_of_this_api(
    fields: dict[str, Any], param: str | None, word: str | None
) -> None:
    if param is None:
        assert chat_of(**fields).tool_choice is None, "there is nothing to choose"
        return
    with pytest.raises(InvalidRequest) as caught:
        chat_of(**fields)
    assert caught.value.param == param and (word or "") in caught.value.message
