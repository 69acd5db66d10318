"""The row of the Responses API among the streaming APIs."""

from __future__ import annotations

from baton_gateway.api.responses.route import ROUTE, _of_input
from baton_gateway.generation.chat_prompt import chat_prompt
from baton_gateway.generation.request import ChatPrompt
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.request import ResponsesRequest


def test_the_journal_can_read_what_it_wrote() -> None:
    """A chat is stored as it was built, and is the same when it is built again."""
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    body = {"model": "m", "input": "hi", "tools": tools, "stop": ["a"], "logit_bias": {"5": 1}}
    asked = build(body | {"include": ["reasoning.encrypted_content"]}, ResponsesRequest)
    chat = asked.chat([], asked.input, "me")
    again = ROUTE.schema.model_validate_json(chat.model_dump_json(exclude_unset=True))
    assert again == chat and again.encrypt_for == "me"
    assert ROUTE.named_events and ROUTE.num_prompts(chat) == 1


def test_media_are_of_the_input() -> None:
    content = [{"type": "input_image", "image_url": "data:,"}]
    body = {"model": "m", "input": [{"role": "user", "content": content}]}
    asked = build(body, ResponsesRequest)
    chat = asked.chat([], asked.input, "me")
    prompt = _of_input(chat_prompt(chat.messages))
    assert isinstance(prompt, ChatPrompt)
    assert [item.param for item in prompt.media] == ["input"]
