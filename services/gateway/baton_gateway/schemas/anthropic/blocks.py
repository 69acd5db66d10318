"""Converts content blocks of a conversation to chat messages.

system                      -> a message of the role "system", in any turn
user: text, image, document -> "user"
user: tool_result           -> "tool", one message per result
assistant: text             -> content
assistant: thinking         -> reasoning_content
assistant: tool_use         -> tool_calls

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from baton_gateway.http.body import check_free_form
from baton_gateway.http.errors import invalid, shorten, wrong_type
from baton_gateway.schemas.anthropic.documents import document_text
from baton_gateway.schemas.anthropic.signature import is_signed
from baton_gateway.schemas.field_access import array_of, field_of, kind_of, string_of
from baton_gateway.schemas.media.image_parts import anthropic_image

Block: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]

_ROLES = ("user", "assistant", "system")
_REFUSED = {
    "search_result": "Send its text as a block of type 'text'.",
    "redacted_thinking": "This server never redacts thinking.",
}
"""Unsupported block types, with advice."""


def chat_messages(system: object, messages: object) -> list[Message]:
    """Convert a conversation. Raises `InvalidRequest` with the path of the field."""
    turns = array_of(messages, "messages")
    chat = []
    if system not in (None, []):
        chat.append({"role": "system", "content": _texts(system, "system")})
    for i, turn in enumerate(turns):
        chat += _turn(turn, f"messages[{i}]")
    return chat


def _turn(turn: object, param: str) -> list[Message]:
    if not isinstance(turn, dict):
        raise wrong_type(param, "an object", turn)
    role = field_of(turn, "role", param)
    if role not in _ROLES:
        supported = ", ".join(f"'{one}'" for one in _ROLES)
        raise invalid(
            f"{param}.role",
            f"Invalid '{param}.role': {shorten(role)}. Supported values are: {supported}.",
        )
    content = field_of(turn, "content", param)
    if role == "system":
        return [{"role": role, "content": _texts(content, f"{param}.content")}]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if content == [] and role == "assistant":
        return [{"role": role, "content": ""}]  # An answer that ended before its first token.
    blocks = array_of(content, f"{param}.content")
    read = _user if role == "user" else _assistant
    return read(blocks, f"{param}.content")


def _user(blocks: list[Any], param: str) -> list[Message]:
    """Results of tools become messages of their own, in the order of the blocks."""
    chat: list[Message] = []
    for i, block in enumerate(blocks):
        where = f"{param}[{i}]"
        kind = _kind(block, where, (*_PARTS, "tool_result"))
        if kind == "tool_result":
            chat.append(_tool_result(block, where))
        elif chat and chat[-1]["role"] == "user":
            chat[-1]["content"].append(_PARTS[kind](block, where))
        else:
            chat.append({"role": "user", "content": [_PARTS[kind](block, where)]})
    return chat


def _tool_result(block: Block, param: str) -> Message:
    content = block.get("content")
    result = "" if content in (None, []) else _parts(content, f"{param}.content", tuple(_PARTS))
    if block.get("is_error"):
        mark = "Error: "
        result = (
            mark + result if isinstance(result, str) else [{"type": "text", "text": mark}, *result]
        )
    number = string_of(block, "tool_use_id", param)
    return {"role": "tool", "tool_call_id": number, "content": result}


def _assistant(blocks: list[Any], param: str) -> list[Message]:
    message: Message = {"role": "assistant", "content": ""}
    for i, block in enumerate(blocks):
        where = f"{param}[{i}]"
        kind = _kind(block, where, tuple(_ASSISTANT))
        _ASSISTANT[kind](message, block, where)
    return [message]


def _add_text(message: Message, block: Block, param: str) -> None:
    message["content"] += string_of(block, "text", param)


def _add_thinking(message: Message, block: Block, param: str) -> None:
    thinking = string_of(block, "thinking", param)
    if not is_signed(thinking, string_of(block, "signature", param)):
        raise invalid(
            f"{param}.signature",
            f"Invalid '{param}.signature': it is not the signature of this thinking. Send thinking "
            "back unchanged, or leave it out.",
        )
    message["reasoning_content"] = message.get("reasoning_content", "") + thinking


def _add_tool_use(message: Message, block: Block, param: str) -> None:
    arguments = field_of(block, "input", param)
    if not isinstance(arguments, dict):
        raise wrong_type(f"{param}.input", "an object", arguments)
    check_free_form(arguments, f"{param}.input")
    function = {
        "name": string_of(block, "name", param),
        "arguments": msgspec.json.encode(arguments).decode(),
    }
    call = {"id": string_of(block, "id", param), "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


_ASSISTANT: dict[str, Callable[[Message, Block, str], None]] = {
    "text": _add_text,
    "thinking": _add_thinking,
    "tool_use": _add_tool_use,
}


def _texts(value: object, param: str) -> str | list[Block]:
    """Convert a string, or text blocks to the text parts of a chat."""
    return _parts(value, param, ("text",))


def _parts(value: object, param: str, supported: tuple[str, ...]) -> str | list[Block]:
    """Convert a string, or blocks of these types to the parts of a chat."""
    if isinstance(value, str):
        return value
    parts = []
    for i, block in enumerate(array_of(value, param)):
        kind = _kind(block, f"{param}[{i}]", supported)
        parts.append(_PARTS[kind](block, f"{param}[{i}]"))
    return parts


def _text_part(block: Block, param: str) -> Block:
    return {"type": "text", "text": string_of(block, "text", param)}


_PARTS: dict[str, Callable[[Block, str], Block]] = {
    "text": _text_part,
    "image": anthropic_image,
    "document": document_text,
}


def _kind(block: object, param: str, supported: tuple[str, ...]) -> str:
    return kind_of(block, param, supported, _REFUSED)
