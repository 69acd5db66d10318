"""Calls of hosted tools in old conversations."""

from __future__ import annotations

from baton_gateway.schemas.responses.hosted_calls import HOSTED_CALLS, WITHOUT_TEXT
from baton_gateway.schemas.responses.input_items import Conversation, input_items
from baton_gateway.schemas.responses.stored_items import stored_items

HISTORY = [
    {"role": "user", "content": "q"},
    {"type": "mcp_list_tools", "server_label": "s", "tools": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "x"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["y"], "results": [{"text": "found"}]},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "outputs": [
        {"type": "logs", "logs": "2"}, {"type": "image", "url": "data:image/png;base64,AAAA"}]},
    {"type": "mcp_approval_request", "name": "f"},
    {"type": "mcp_approval_response", "approve": True},
    {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "done", "status": "completed"},
    {"type": "mcp_call", "name": "f", "arguments": "{}", "output": None, "error": "late"},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "AAAA"},
    {"role": "assistant", "content": "a"},
]  # fmt: skip


def test_a_hosted_call_is_a_call_with_its_result() -> None:
    conversation = Conversation()
    items = stored_items(input_items(HISTORY))
    conversation.add(items)
    question, *turns, answer = conversation.finish()
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    results = {turn["tool_call_id"]: turn["content"] for turn in turns if turn["role"] == "tool"}
    assert [(call["function"], results[call["id"]]) for call in calls] == [
        ({"name": "web_search", "arguments": '{"action":{"query":"x"}}'}, '{"status":"completed"}'),
        (
            {"name": "file_search", "arguments": '{"queries":["y"]}'},
            '{"status":"completed","results":[{"text":"found"}]}',
        ),
        (
            {"name": "code_interpreter", "arguments": '{"code":"1+1"}'},
            '{"status":"completed","outputs":[{"type":"logs","logs":"2"}]}',
        ),
        ({"name": "f", "arguments": "{}"}, "done"),
        ({"name": "f", "arguments": "{}"}, '{"status":"completed","error":"late"}'),
        ({"name": "image_generation", "arguments": "{}"}, '{"status":"completed"}'),
    ]
    assert (question["content"], answer["content"]) == ("q", "a")
    assert {item["type"] for item in items} > {*HOSTED_CALLS, *WITHOUT_TEXT}
