"""Items as OpenAI's client expects them in a list."""

from __future__ import annotations

from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from baton_gateway.schemas.responses.input_items import input_items
from baton_gateway.schemas.responses.stored_items import stored_items

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}


def test_items_get_an_id_a_status_and_parts() -> None:
    kept = {"role": "assistant", "id": "msg_mine", "content": "b"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    items = stored_items(input_items([{"role": "user", "content": "a"}, kept, CALL, output]))
    assert [item["id"].partition("_")[0] for item in items] == ["msg", "msg", "fc", "fco"]
    assert items[1]["id"] == "msg_mine" and len({item["id"] for item in items}) == 4
    assert [item["status"] for item in items] == ["completed"] * 4
    assert items[0]["content"] == [{"type": "input_text", "text": "a"}]
    for item in items:
        TypeAdapter(ResponseItem).validate_python(item)
    assert stored_items(items) == items
