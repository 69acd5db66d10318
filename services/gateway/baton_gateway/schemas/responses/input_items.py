"""Converts items of a conversation to chat messages.

instructions, message: system, developer, user   -> messages of these roles
message: assistant                               -> content of the assistant's message
reasoning                                        -> its reasoning_content
function_call, custom_tool_call                  -> its tool_calls
function_call_output, custom_tool_call_output    -> "tool", one message per output
shell_call, local_shell_call, apply_patch_call   -> as function_call, their outputs as its output
web_search_call and others of `HOSTED_CALLS`     -> a call and its output

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from baton.errors import InvalidRequest
from baton_gateway.http.errors import invalid, shorten
from baton_gateway.schemas.field_access import array_of, field_of, kind_of, object_of, string_of
from baton_gateway.schemas.media.chat_parts import check_media
from baton_gateway.schemas.media.image_parts import responses_image
from baton_gateway.schemas.responses.hosted_calls import (
    HOSTED_CALLS,
    WITHOUT_TEXT,
    hosted_call,
    json_fields,
)
from baton_gateway.schemas.responses.namespaces import ToolNames

Item: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]

REFERENCE = "item_reference"
"""Type of an item that refers to another one by its id."""
_ROLES = ("user", "assistant", "system", "developer")
_PARTS = ("input_text", "output_text", "refusal", "text")
_REFUSED_PARTS = {
    "input_image": "Only the user and tools can show images.",
    "input_audio": "Only the user and tools can send audio.",
    "input_file": "Send its text as a part of type 'input_text'.",
}
_REFUSED = {
    "compaction": "This server does not compact conversations.",
    "computer_call": "This server runs no tools.",
    "computer_call_output": "This server runs no tools.",
}
"""Unsupported item types, with advice."""


def input_items(value: object, param: str = "input") -> list[Item]:
    """Return the input of a request as items: a string is a message of the user.

    References to items of stored responses are unchanged. Raises `InvalidRequest` for an item of an
    unknown type.
    """
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return [_item(item, f"{param}[{i}]") for i, item in enumerate(array_of(value, param))]


def _item(item: object, param: str) -> Item:
    """Return an item with its type, which messages may omit."""
    fields = object_of(item, param)
    if "type" not in fields and "role" in fields:
        fields = {"type": "message"} | fields
    kind = kind_of(fields, param, (*_READERS, REFERENCE), _REFUSED)
    if kind == REFERENCE:
        string_of(fields, "id", param)
    if kind == "message":
        string_of(fields, "role", param)
        field_of(fields, "content", param)
    return fields


class Conversation:
    """Collects the messages of a chat from items, in order."""

    def __init__(self, instructions: str | None = None, names: ToolNames | None = None) -> None:
        """`names`: the tools of the request, which calls in items refer to."""
        self.messages: list[Message] = []
        self._names = ToolNames([]) if names is None else names
        self._open_calls: dict[str, str] = {}
        """Calls without an output so far: id -> path of the item."""
        self._partial = False
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, items: Iterable[Item], param: str = "input", *, partial: bool = False) -> None:
        """Append items. Raises `InvalidRequest` with the path of the field.

        Args:
            partial: outputs may refer to calls of another part of the conversation.
        """
        self._partial = partial
        for i, item in enumerate(items):
            read = _READERS.get(item["type"])
            if read is None:
                raise invalid(
                    f"{param}[{i}].type",
                    "An item_reference cannot be used here: send the item itself.",
                )
            if item.get("status") != "incomplete" or item["type"] not in _CALLS:
                read(self, item, f"{param}[{i}]")

    def finish(self) -> list[Message]:
        """Return the messages. Raises `InvalidRequest` for a call without an output."""
        for call_id, param in self._open_calls.items():
            raise _without_pair(f"No tool output found for function call {call_id}.", param)
        return [m for m in self.messages if not _is_only_thinking(m)]

    def message(self, item: Item, param: str) -> None:
        """Append a message."""
        role = string_of(item, "role", param)
        if role not in _ROLES:
            expected = ", ".join(f"'{name}'" for name in _ROLES)
            where = f"{param}.role"
            raise invalid(
                where, f"Invalid '{where}': {shorten(role)}. Supported values are: {expected}."
            )
        content = field_of(item, "content", param)
        if role == "user":
            parts = _content(content, f"{param}.content")
            self.messages.append({"role": "user", "content": parts})
            return
        text = _text(content, f"{param}.content")
        if role == "assistant":
            self._add_assistant_text(text)
        elif [m["role"] for m in self.messages] == ["system"]:
            # Many templates accept one system message only, and only as the first.
            self.messages[0]["content"] += "\n\n" + text
        else:
            self.messages.append({"role": "system", "content": text})

    def reasoning(self, item: Item, param: str) -> None:
        """Append thinking to the assistant's message that follows it."""
        content = item.get("content") or []
        if not content:
            return
        where = f"{param}.content"
        parts = array_of(content, where)
        for i, part in enumerate(parts):
            kind_of(part, f"{where}[{i}]", ("reasoning_text",), {})
        thinking = "".join(string_of(p, "text", f"{where}[{i}]") for i, p in enumerate(parts))
        message = self._assistant_message(new=True)
        message["reasoning_content"] = message.get("reasoning_content", "") + thinking

    def function_call(self, item: Item, param: str) -> None:
        """Append a call."""
        self._call(item, param, string_of(item, "arguments", param))

    def custom_tool_call(self, item: Item, param: str) -> None:
        """Append a call of a custom tool, converted to a function with one text argument."""
        text = string_of(item, "input", param)
        self._call(item, param, msgspec.json.encode({"input": text}).decode())

    def client_call(self, item: Item, param: str) -> None:
        """Append a call of a tool of OpenAI's that the client ran."""
        name, asked = _CLIENT_CALLS[item["type"]]
        arguments = msgspec.json.encode(field_of(item, asked, param)).decode()
        self._append_call(string_of(item, "call_id", param), name, arguments, param)

    def hosted_call(self, item: Item, param: str) -> None:
        """Append a call of a hosted tool and its result."""
        call, call_id = hosted_call(item, param), str(item.get("id") or param)
        self._append_call(call_id, call.name, call.arguments, param)
        self._append_output(call_id, call.result, param)

    def skip(self, item: Item, param: str) -> None:
        """Append nothing."""

    def client_output(self, item: Item, param: str) -> None:
        """Append the output of a call that the client ran: a text, or an object as JSON."""
        # The id of a local shell's output is that of its call.
        call_id = string_of(item, "id" if item["type"] == _LOCAL_OUTPUT else "call_id", param)
        output = item.get("output")
        if not isinstance(output, str):
            output = json_fields(item, "status", "output")
        self._append_output(call_id, output, param)

    def output(self, item: Item, param: str) -> None:
        """Append the output of a call."""
        call_id = string_of(item, "call_id", param)
        result = _content(field_of(item, "output", param), f"{param}.output")
        self._append_output(call_id, result, param)

    def _append_output(self, call_id: str, result: str | list[Message], param: str) -> None:
        if self._open_calls.pop(call_id, None) is None and not self._partial:
            message = f"No tool call found for function call output with call_id {call_id}."
            raise _without_pair(message, param)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": result})

    def _call(self, item: Item, param: str, arguments: str) -> None:
        call_id = string_of(item, "call_id", param)
        name = self._names.model_name(item, string_of(item, "name", param))
        self._append_call(call_id, name, arguments, param)

    def _append_call(self, call_id: str, name: str, arguments: str, param: str) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._assistant_message().setdefault("tool_calls", []).append(call)
        self._open_calls[call_id] = param

    def _add_assistant_text(self, text: str) -> None:
        """Append text of the assistant: as a new message, unless the last message has neither text
        nor calls, whose outputs must follow it."""
        message = self._assistant_message()
        if message["content"] and "tool_calls" not in message:
            self.messages.append({"role": "assistant", "content": text})
        else:
            message["content"] += text

    def _assistant_message(self, *, new: bool = False) -> Message:
        """Return the assistant's message at the end; a new one if there is none.

        Args:
            new: start a new message if the last one has content.
        """
        last = self.messages[-1] if self.messages else {}
        has_content = last.get("content") or last.get("tool_calls")
        if last.get("role") != "assistant" or (new and has_content and not self._open_calls):
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


_LOCAL_OUTPUT = "local_shell_call_output"
_CLIENT_CALLS = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
}
"""Type of an item -> name of the tool, field of its arguments."""
_CALLS = ("function_call", "custom_tool_call", *_CLIENT_CALLS, *HOSTED_CALLS)
"""Types of items that are dropped if incomplete: such calls were never run."""
_READERS: dict[str, Callable[[Conversation, Item, str], None]] = {
    "message": Conversation.message,
    "reasoning": Conversation.reasoning,
    "function_call": Conversation.function_call,
    "custom_tool_call": Conversation.custom_tool_call,
    "function_call_output": Conversation.output,
    "custom_tool_call_output": Conversation.output,
    **dict.fromkeys(_CLIENT_CALLS, Conversation.client_call),
    **{f"{kind}_output": Conversation.client_output for kind in _CLIENT_CALLS},
    **dict.fromkeys(HOSTED_CALLS, Conversation.hosted_call),
    **dict.fromkeys(WITHOUT_TEXT, Conversation.skip),
}


def _content(value: object, param: str) -> str | list[Message]:
    """Return the text of a user message or tool output, or its parts if there are media."""
    if not isinstance(value, list) or not any(map(_media_type, value)):
        return _text(value, param)
    parts = []
    for i, part in enumerate(array_of(value, param)):
        where, kind = f"{param}[{i}]", _media_type(part)
        if kind == "input_image":
            parts.append(responses_image(part, where))
        elif kind:
            check_media(part, kind, "user", where)
            parts.append({"type": kind, kind: part[kind]})
        else:
            parts.append({"type": "text", "text": _part_text(part, where)})
    return parts


def _media_type(part: object) -> str:
    """The type of a part with media; empty for any other part."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if kind in ("input_image", "input_audio") else ""


def _text(value: object, param: str) -> str:
    """Return the text of a string, or of an array of text parts."""
    if isinstance(value, str):
        return value
    if value == []:
        return ""
    parts = enumerate(array_of(value, param))
    return "".join(_part_text(part, f"{param}[{i}]") for i, part in parts)


def _part_text(part: Any, param: str) -> str:
    kind = kind_of(part, param, _PARTS, _REFUSED_PARTS)
    return string_of(part, "refusal" if kind == "refusal" else "text", param)


def _is_only_thinking(message: Message) -> bool:
    """Whether an assistant's message is empty: its answer was truncated or dropped."""
    return message["role"] == "assistant" and not (message["content"] or "tool_calls" in message)


def _without_pair(message: str, param: str) -> InvalidRequest:
    return invalid(param, message, "invalid_value")
