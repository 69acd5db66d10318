"""Validates the messages of a chat request one by one, so that errors name the exact field."""

from __future__ import annotations

import re
from typing import Any

from baton.errors import InvalidRequest
from baton_gateway.http.body import check_free_form, parse
from baton_gateway.http.errors import (
    UnpairedCall,
    invalid,
    missing,
    shorten,
    wrong_type,
)
from baton_gateway.schemas.media.chat_parts import MEDIA, check_media

ROLES = ("system", "developer", "user", "assistant", "tool")
_MAY_BE_EMPTY = ("assistant", "tool")
"""Roles whose messages may have no content."""
MAX_MESSAGES = 4096
_MAX_ARGUMENTS = 256 * 1024
_NAME = re.compile(r"[\w.@+-]{1,64}")
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Type of a part -> field of its text. Some clients send parts of the Responses API."""
_REFUSED = ("file", "image", "video", "audio")
"""Media part types of other servers."""
_SUPPORTED = "'text', 'image_url', 'image_embeds', 'video_url', 'input_audio' and 'audio_url'"

_REASONING = ("reasoning", "reasoning_content")
"""Fields of a message's thinking; the last one that is given counts."""

Message = dict[str, Any]


def check_messages(value: object) -> list[Message]:
    """Return the messages with the fields a template may read; "developer" becomes "system"."""
    messages = _array(value, "messages", MAX_MESSAGES)
    checked = [_message(item, f"messages[{i}]") for i, item in enumerate(messages)]
    _check_order(checked)
    return checked


def _array(value: object, param: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if not value:
        raise invalid(
            param,
            f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got "
            "an empty array instead.",
            "empty_array",
        )
    if len(value) > most:
        raise invalid(
            param,
            f"Invalid '{param}': array too long. Expected at most {most} elements, but got "
            f"{len(value)} instead.",
            "array_above_max_length",
        )
    return value


def _message(item: object, param: str) -> Message:
    if not isinstance(item, dict):
        raise wrong_type(param, "an object", item)
    role = _role(item, f"{param}.role")
    message: Message = {"role": "system" if role == "developer" else role}
    if role == "assistant" and item.get("tool_calls") not in (None, []):
        message["tool_calls"] = _tool_calls(item["tool_calls"], f"{param}.tool_calls")
    message["content"] = _content(item, role, f"{param}.content")
    if item.get("name") is not None:
        message["name"] = _name(item["name"], f"{param}.name")
    if role == "tool":
        message["tool_call_id"] = _text(item, "tool_call_id", param)
    if role == "assistant":
        for field in _REASONING:
            if item.get(field) is not None:
                message["reasoning_content"] = _text(item, field, param)
    return message


def _role(item: Message, param: str) -> str:
    if "role" not in item:
        raise missing(param)
    role = item["role"]
    if role not in ROLES:
        supported = ", ".join(f"'{r}'" for r in ROLES)
        raise invalid(param, f"Invalid value: {shorten(role)}. Supported values are: {supported}.")
    return str(role)


def _content(item: Message, role: str, param: str) -> str | list[Message] | None:
    content = item.get("content")
    if isinstance(content, str):
        return content
    if content in (None, []) and role in _MAY_BE_EMPTY:
        return _without_content(item)
    if "content" not in item:
        raise missing(param)
    if not isinstance(content, list):
        raise wrong_type(param, "a string or an array of parts", content)
    return check_parts(content, param, role)


def _without_content(item: Message) -> str | None:
    """Return the content of an answer without text, such as one that was cut off in its thinking,
    or of a tool without output."""
    if isinstance(item.get("refusal"), str):
        return str(item["refusal"])
    return None if item.get("tool_calls") else ""


def check_parts(value: object, param: str, role: str = "user") -> list[Message]:
    """Return the content parts of a message of this role. Raises `InvalidRequest`."""
    parts = _array(value, param, MAX_MESSAGES)
    return [_part(part, role, f"{param}[{i}]") for i, part in enumerate(parts)]


def _part(part: object, role: str, param: str) -> Message:
    if not isinstance(part, dict):
        raise wrong_type(param, "an object", part)
    if "type" not in part:
        raise missing(f"{param}.type")
    kind = part["type"] if isinstance(part["type"], str) else ""
    if kind in _TEXTS:
        return {"type": "text", "text": _text(part, _TEXTS[kind], param)}
    if kind in MEDIA:
        return check_media(part, kind, role, param)
    if kind in _REFUSED:
        raise invalid(
            "messages",
            f"Unsupported value: 'messages' does not support parts of type '{kind}' with this "
            f"model. Only the types {_SUPPORTED} are supported.",
            "unsupported_value",
        )
    raise invalid(
        f"{param}.type",
        f"Invalid value: {shorten(part['type'])}. Supported values are: {_SUPPORTED}.",
    )


def _text(item: Message, field: str, param: str) -> str:
    if field not in item:
        raise missing(f"{param}.{field}")
    if not isinstance(item[field], str):
        raise wrong_type(f"{param}.{field}", "a string", item[field])
    return str(item[field])


def _name(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not _NAME.fullmatch(value):
        expected = "1 to 64 letters, digits, '_', '-', '.', '@' or '+'"
        raise invalid(param, f"Invalid '{param}': expected {expected}.")
    return value


def _tool_calls(value: object, param: str) -> list[Message]:
    return [_tool_call(c, f"{param}[{i}]") for i, c in enumerate(_array(value, param, 128))]


def _tool_call(call: object, param: str) -> Message:
    if not isinstance(call, dict):
        raise wrong_type(param, "an object", call)
    identity = _text(call, "id", param)
    if call.get("type", "function") != "function":
        raise invalid(f"{param}.type", "Invalid value. Supported values are: 'function'.")
    function = call.get("function")
    if not isinstance(function, dict):
        raise missing(f"{param}.function")
    name = _text(function, "name", f"{param}.function")  # As the model wrote it.
    # Clients that join the deltas of a call without arguments send back an empty string.
    arguments = _text(function, "arguments", f"{param}.function") or "{}"
    _check_arguments(arguments, f"{param}.function.arguments")
    return {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _check_arguments(arguments: str, param: str) -> None:
    if len(arguments) > _MAX_ARGUMENTS:
        raise invalid(param, f"Invalid '{param}': longer than {_MAX_ARGUMENTS} characters.")
    try:
        check_free_form(parse(arguments.encode()), param)
    except InvalidRequest as error:
        raise invalid(param, f"Invalid '{param}': expected a JSON object as text.") from error


def _check_order(messages: list[Message]) -> None:
    """Require that the results of tool calls directly follow the calls."""
    open_calls: set[str] = set()
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise _without_call(i, message["tool_call_id"])
            open_calls.discard(message["tool_call_id"])
        else:
            if open_calls:
                raise _unanswered(i, open_calls)
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
    if open_calls:
        raise _unanswered(len(messages) - 1, open_calls)


def _unanswered(index: int, ids: set[str]) -> UnpairedCall:
    return UnpairedCall(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to "
        "each 'tool_call_id'.",
        param=f"messages.[{index}].role",
        in_blocks="`tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{_shown(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in "
        "the next message.",
    )


def _without_call(index: int, identity: str) -> UnpairedCall:
    return UnpairedCall(
        "messages with role 'tool' must answer a preceding 'tool_calls'.",
        param=f"messages.[{index}].role",
        in_blocks=f"unexpected `tool_use_id` found in `tool_result` blocks: {_shown({identity})}. "
        "Each `tool_result` block must have a corresponding `tool_use` block in the previous "
        "message.",
    )


def _shown(ids: set[str]) -> str:
    return ", ".join(identity[:64] for identity in sorted(ids)[:8])
