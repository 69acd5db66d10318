"""Items in their stored form: each with an id, texts as parts."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

Item = dict[str, Any]

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "code_interpreter_call": "ci",
    "file_search_call": "fs",
    "image_generation_call": "ig",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcprs",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "web_search_call": "ws",
}


def stored_items(items: Iterable[Item]) -> list[Item]:
    """Return items of a request in their stored form. Ids given by the client are kept."""
    return [_stored(item) for item in items]


def _stored(item: Item) -> Item:
    kind = item["type"]
    name = item.get("id")
    if not isinstance(name, str) or not name:
        name = f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"
    fields = item | {"id": name, "status": item.get("status") or "completed"}
    if kind == "message" and isinstance(item["content"], str):
        fields["content"] = [_part(item["role"], item["content"])]
    return fields


def _part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
