"""Validates the messages of a chat request one by one, so that errors name the exact field."""

from __future__ import annotations

import re
from typing import Any

from baton.errors import InvalidRequest
from baton_gateway.generation.chat_prompt import FILE_SCHEME
from baton_gateway.http.body import check_depth, parse
from baton_gateway.http.errors import (
    invalid,
    missing,
    shorten,
    wrong_type,
)

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 4096
_MAX_ARGUMENTS = 256 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_IMAGES = ("image_url", "input_image", "image_file")
_SEEING = ("user", "tool")
"""Roles whose messages may hold images and videos."""
_DETAILS = ("auto", "low", "high", "original")
_MEDIA = ("input_audio", "file", "audio_url", "image", "video")
_SUPPORTED = "'text', 'image_url', 'image_embeds' and 'video_url'"
_TENSOR = "data:application/octet-stream;base64,"
_EXAMPLES = {"image": "data:image/png;base64,...", "video": "data:video/mp4;base64,..."}

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
    if role == "assistant" and item.get("tool_calls") is not None:
        message["tool_calls"] = _tool_calls(item["tool_calls"], f"{param}.tool_calls")
    message["content"] = _content(item, role, f"{param}.content")
    if item.get("name") is not None:
        message["name"] = _name(item["name"], f"{param}.name")
    if role == "tool":
        message["tool_call_id"] = _text(item, "tool_call_id", param)
    if role == "assistant" and item.get("reasoning_content") is not None:
        message["reasoning_content"] = _text(item, "reasoning_content", param)
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
    if content is None:
        if role == "assistant" and (item.get("tool_calls") or item.get("refusal")):
            return item.get("refusal") if isinstance(item.get("refusal"), str) else None
        if "content" not in item:
            raise missing(param)
    if not isinstance(content, list):
        raise wrong_type(param, "a string or an array of parts", content)
    return check_parts(content, param, role)


def check_parts(value: object, param: str, role: str = "user") -> list[Message]:
    """Return the content parts of a message of this role. Raises `InvalidRequest`."""
    parts = _array(value, param, MAX_MESSAGES)
    return [_part(part, role, f"{param}[{i}]") for i, part in enumerate(parts)]


def _part(part: object, role: str, param: str) -> Message:
    if not isinstance(part, dict):
        raise wrong_type(param, "an object", part)
    if "type" not in part:
        raise missing(f"{param}.type")
    kind = part["type"]
    if kind in ("text", "refusal"):
        return {"type": "text", "text": _text(part, kind, param)}
    if kind in _IMAGES:
        return _image(part, kind, role, param)
    if kind == "image_embeds":
        return _embeds(part, role, param)
    if kind == "video_url":
        return _video(part, role, param)
    if kind in _MEDIA:
        _check_media(part, kind, param)
        raise invalid(
            "messages",
            f"Unsupported value: 'messages' does not support parts of type '{kind}' with this "
            f"model. Only the types {_SUPPORTED} are supported.",
            "unsupported_value",
        )
    raise invalid(
        f"{param}.type",
        f"Invalid value: {shorten(kind)}. Supported values are: {_SUPPORTED}.",
    )


def _image(part: Message, kind: str, role: str, param: str) -> Message:
    """An image as chat has it, `{"image_url": {"url": ...}}`, as the Responses API has it,
    `{"image_url": ...}` or `{"file_id": ...}`, or as assistants have it, `{"image_file":
    {"file_id": ...}}`."""
    _check_seeing(role, "images", param)
    place, given = f"{param}.image_url", part.get("image_url")
    if kind == "input_image":
        given = {name: part.get(name) for name in ("file_id", "detail")} | {"url": given}
    elif kind == "image_file":
        place, given = f"{param}.image_file", part.get("image_file")
    if given is None:
        raise missing(place)
    if not isinstance(given, dict):
        raise wrong_type(place, "an object", given)
    if given.get("detail") is not None and given["detail"] not in _DETAILS:
        supported = ", ".join(f"'{detail}'" for detail in _DETAILS)
        message = f"Invalid value: {shorten(given['detail'])}. Supported values are: {supported}."
        raise invalid(f"{place}.detail", message)
    return {"type": "image_url", "image_url": {"url": _url(given, place, "image")}}


def _embeds(part: Message, role: str, param: str) -> Message:
    """Embeddings of an image, as vLLM has them: `{"image_embeds": "<base64>"}`."""
    _check_seeing(role, "images", param)
    place, given = f"{param}.image_embeds", part.get("image_embeds")
    if given is None:
        raise missing(place)
    if not isinstance(given, str) or not given:
        raise wrong_type(place, "a base64 string of one tensor", given)
    if not given.isascii():
        raise invalid(place, f"Invalid '{place}': expected base64.", "invalid_base64_image_embeds")
    return {"type": "image_embeds", "image_embeds": {"url": f"{_TENSOR}{given}"}}


def _video(part: Message, role: str, param: str) -> Message:
    _check_seeing(role, "videos", param)
    place, given = f"{param}.video_url", part.get("video_url")
    if given is None:
        raise missing(place)
    if not isinstance(given, dict):
        raise wrong_type(place, "an object", given)
    return {"type": "video_url", "video_url": {"url": _url(given, place, "video")}}


def _check_seeing(role: str, what: str, param: str) -> None:
    if role not in _SEEING:
        raise invalid(
            f"{param}.type",
            f"Invalid value: a message of the role '{role}' cannot hold {what}. Put them into "
            "messages of the role 'user'.",
        )


def _url(given: Message, place: str, kind: str) -> str:
    """The URL of media, which names an uploaded file if there is a `file_id`."""
    url, file = given.get("url"), given.get("file_id")
    if url is None and file is not None:
        if not isinstance(file, str) or not _FILE_ID.fullmatch(file):
            raise invalid(f"{place}.file_id", f"Invalid '{place}.file_id': {shorten(file)}.")
        return f"{FILE_SCHEME}{file}"
    if not isinstance(url, str) or not url:
        raise wrong_type(f"{place}.url", "a string", url)
    if not url.isascii():
        raise invalid(
            place,
            f"Invalid '{place}.url': expected {_EXAMPLES[kind]}",
            f"invalid_{kind}_url",
        )
    return url


def _check_media(part: Message, kind: str, param: str) -> None:
    if kind not in part:
        raise missing(f"{param}.{kind}")
    if kind.endswith("_url"):
        if not isinstance(part[kind], dict):
            raise wrong_type(f"{param}.{kind}", "an object", part[kind])
        if not part[kind].get("url") or not isinstance(part[kind]["url"], str):
            raise wrong_type(f"{param}.{kind}.url", "a string", part[kind].get("url"))


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
        raise invalid(param, f"Invalid '{param}': expected 1 to 64 letters, digits, '_' or '-'.")
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
    name = _name(function.get("name"), f"{param}.function.name")
    arguments = _text(function, "arguments", f"{param}.function")
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
        check_depth(parse(arguments.encode()), param)
    except InvalidRequest as error:
        raise invalid(param, f"Invalid '{param}': expected a JSON object as text.") from error


def _check_order(messages: list[Message]) -> None:
    """Require that the results of tool calls directly follow the calls."""
    owed: set[str] = set()
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in owed:
                raise _order(i, "messages with role 'tool' must answer a preceding 'tool_calls'.")
            owed.discard(message["tool_call_id"])
        else:
            if owed:
                raise _order(i, _UNANSWERED)
            owed = {call["id"] for call in message.get("tool_calls", ())}
    if owed:
        raise _order(len(messages) - 1, _UNANSWERED)


_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to "
    "each 'tool_call_id'."
)


def _order(index: int, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=f"messages.[{index}].role")
