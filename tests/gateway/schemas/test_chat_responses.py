"""Chat responses parse as OpenAI's own types."""

from __future__ import annotations

import msgspec
from openai.types.chat import ChatCompletion as OpenAIChat
from openai.types.chat import ChatCompletionChunk as OpenAIChunk

from baton_gateway.schemas.chat_responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
)
from baton_gateway.schemas.usage import Usage

HEAD = {"id": "x", "created": 1, "model": "m", "system_fingerprint": "f"}


def test_openais_models_take_them() -> None:
    choice = ChatChoice(0, ChatMessage("a"), "stop")
    chat = ChatCompletion(**HEAD, choices=[choice], usage=Usage.of(2, 3))
    assert OpenAIChat.model_validate_json(msgspec.json.encode(chat), strict=True)
    chunk = ChatChunk(**HEAD, choices=[ChatChunkChoice(0, ChatDelta(content="a"))])
    assert OpenAIChunk.model_validate_json(msgspec.json.encode(chunk), strict=True)


def test_what_was_not_asked_for_is_absent() -> None:
    chunk = ChatChunk(**HEAD, choices=[ChatChunkChoice(0, ChatDelta())])
    fields = msgspec.to_builtins(chunk)
    assert set(fields) == {*HEAD, "object", "choices"}
    assert fields["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
