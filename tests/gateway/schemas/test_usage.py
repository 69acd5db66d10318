"""Responses parse as OpenAI's own types."""

from __future__ import annotations

import msgspec
from openai.types import Completion as OpenAICompletion
from openai.types.chat import ChatCompletion as OpenAIChat
from openai.types.chat import ChatCompletionChunk as OpenAIChunk

from baton_gateway.schemas.usage import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Completion,
    CompletionChoice,
    Usage,
)

HEAD = {"id": "x", "created": 1, "model": "m", "system_fingerprint": "f"}


def test_openais_models_take_them() -> None:
    usage = Usage.of(2, 3)
    chat = ChatCompletion(**HEAD, choices=[ChatChoice(0, ChatMessage("a"), "stop")], usage=usage)
    assert OpenAIChat.model_validate_json(msgspec.json.encode(chat), strict=True)
    chunk = ChatChunk(**HEAD, choices=[ChatChunkChoice(0, ChatDelta(content="a"))])
    assert OpenAIChunk.model_validate_json(msgspec.json.encode(chunk), strict=True)
    completion = Completion(**HEAD, choices=[CompletionChoice(0, "a", "stop")], usage=usage)
    assert OpenAICompletion.model_validate_json(msgspec.json.encode(completion), strict=True)
    assert usage.total_tokens == 5


def test_what_was_not_asked_for_is_absent() -> None:
    chunk = ChatChunk(**HEAD, choices=[ChatChunkChoice(0, ChatDelta())])
    fields = msgspec.to_builtins(chunk)
    assert set(fields) == {*HEAD, "object", "choices"}
    assert fields["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
