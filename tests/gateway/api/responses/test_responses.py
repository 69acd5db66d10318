"""The Responses API over the fake engine: whole, streamed, refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI
from pydantic import BaseModel

from baton.protocol import EncodeChat, Failed, Submit
from tests.fakes import gateway_socket
from tests.fakes.gateway_app import Site, error_of, site, speaking
from tests.fakes.gateway_engine import MODEL
from tests.support.gateway.message_events import named_events
from tests.support.gateway.response_events import response_of

PATH = "/v1/responses"
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
VARYING = ("id", "created_at", "completed_at")


def ask(here: Site, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "hi"} | fields
    return here.post(PATH, {k: v for k, v in body.items() if v is not ...})


def both(here: Site, **fields: Any) -> dict[str, Any]:
    """The response, which is the same whole and streamed but for ids and times."""
    answer = ask(here, **fields)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    stream = response_of(named_events(ask(here, stream=True, **fields).text))
    assert whole["id"].startswith("resp_") and whole["id"] != stream["id"]
    assert timeless(whole) == timeless(stream)
    return whole


def timeless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what two of the same request differ in."""
    items = [
        {k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]
    ]
    return {k: v for k, v in response.items() if k not in VARYING} | {"output": items}


def rendered(here: Site) -> EncodeChat:
    """The newest conversation that the tokenizer was given."""
    return [m for m in here.engine.tokenizer.seen if isinstance(m, EncodeChat)][-1]


@pytest.mark.row("F18.04")
def test_a_text_ends_by_itself_or_at_the_limit(shared_site: Site) -> None:
    said = both(shared_site, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
    [message] = said["output"]
    assert message["content"][0]["text"] == "Hello from Baton."
    assert (said["status"], said["model"], said["metadata"]) == ("completed", MODEL, {"a": "b"})
    assert said["usage"]["output_tokens"] == len("Hello from Baton.") + 1
    roles = [message["role"] for message in json.loads(rendered(shared_site).messages)]
    assert roles == ["system", "user"]
    said = both(shared_site, max_output_tokens=3)
    assert (said["status"], said["output"][0]["status"]) == ("incomplete", "incomplete")
    assert said["incomplete_details"] == {"reason": "max_output_tokens"}
    [*_, submit] = [m for m in shared_site.engine.scheduler.seen if isinstance(m, Submit)]
    assert submit.sampling.max_tokens == 3


def test_the_tokens_of_a_prompt_are_counted(shared_site: Site) -> None:
    said = ask(shared_site, instructions="Be brief.").json()
    body = {"model": MODEL, "input": "hi", "instructions": "Be brief."}
    counted = shared_site.post(f"{PATH}/input_tokens", body).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": said["usage"]["input_tokens"],
    }
    body = {"model": MODEL, "input": "and?", "previous_response_id": said["id"]}
    more = shared_site.post(f"{PATH}/input_tokens", body).json()
    assert more["input_tokens"] > counted["input_tokens"]


def test_a_message_without_its_fields_is_refused(shared_site: Site) -> None:
    for item, field in (
        ({"role": "user"}, "content"),
        ({"type": "message", "content": "x"}, "role"),
    ):
        answer = ask(shared_site, input=[item])
        assert answer.status_code == 400
        assert error_of(answer)["param"] == f"input[0].{field}"


@pytest.mark.row("F18.04")
def test_a_call_is_an_item_and_its_output_goes_back() -> None:
    with site() as here:
        speaking(here, f"I add.{CALL}", tool_call_parser="hermes")
        said = both(here, tools=[ADD])
        text, call = said["output"]
        assert text["content"][0]["text"] == "I add."
        assert (call["type"], call["name"], call["arguments"]) == (
            "function_call",
            "add",
            '{"a": 1}',
        )
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
        items = [{"role": "user", "content": "hi"}, text, call, output]
        assert ask(here, input=items, tools=[ADD]).status_code == 200
        roles = [message["role"] for message in json.loads(rendered(here).messages)]
        assert roles == ["user", "assistant", "tool"]
        none = both(here, tools=[ADD], tool_choice="none")
        assert [item["type"] for item in none["output"]] == ["message"]


def test_thinking_is_an_item_and_goes_back() -> None:
    with site() as here:
        speaking(here, "hmm</think>\n\n4", reasoning_parser="qwen3", tail="user: hi<think>\n")
        said = both(here)
        thought, text = said["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "hmm"}]
        assert said["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        turns = [{"role": "user", "content": "hi"}, thought, text, {"role": "user", "content": "?"}]
        assert ask(here, input=turns).status_code == 200
        assert json.loads(rendered(here).messages)[1]["reasoning_content"] == "hmm"


def test_encrypted_thinking_goes_back_without_its_text() -> None:
    fields: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "store": False}
    with site(api_key="one-key,other-key") as here:
        speaking(here, "hmm</think>\n\n4", reasoning_parser="qwen3", tail="user: hi<think>\n")
        body = {"model": MODEL, "input": "hi"} | fields
        mine, other = ({"authorization": f"Bearer {key}"} for key in ("one-key", "other-key"))
        whole = here.post(PATH, body, headers=mine).json()
        events = named_events(here.post(PATH, body | {"stream": True}, headers=mine).text)
        thought = whole["output"][0]
        assert response_of(events)["output"][0]["encrypted_content"] == thought["encrypted_content"]
        sealed = {k: thought[k] for k in ("type", "id", "summary", "encrypted_content")}
        turns = [{"role": "user", "content": "hi"}, sealed, whole["output"][1]]
        assert here.post(PATH, body | {"input": turns}, headers=mine).status_code == 200
        assert json.loads(rendered(here).messages)[1]["reasoning_content"] == "hmm"
        first, rest = thought["encrypted_content"][0], thought["encrypted_content"][1:]
        changed = [{**sealed, "encrypted_content": ("B" if first == "A" else "A") + rest}]
        for headers, items in ((other, turns), (mine, changed)):
            refused = here.post(PATH, body | {"input": items}, headers=headers)
            assert (error_of(refused)["param"] or "").endswith(".encrypted_content")


def test_custom_tools_are_called_with_a_text() -> None:
    free = {"type": "custom", "name": "g"}
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" | "b"'}
    lark = free | {"name": "h", "format": grammar}
    named = {"type": "custom", "name": "h"}
    with site() as here:
        speaking(here, '[{"name": "g", "arguments": {"input": "x\\ny"}}]')
        [call] = both(here, tools=[free], tool_choice="required")["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "g", "x\ny")
        here.engine.scheduler.reply = "a"
        [call] = both(here, tools=[free, lark], tool_choice=named)["output"]
        assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "h", "a")
        [*_, submit] = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
        assert submit.sampling.grammar is not None
        assert submit.sampling.grammar.source == grammar["definition"]
        refused = ask(here, tools=[free, lark])
        assert error_of(refused)["param"] == "tools[1].format.syntax"
        bad = lark | {"format": grammar | {"definition": "start: nowhere"}}
        assert error_of(ask(here, tools=[bad], tool_choice=named))["param"] == "tools"


def test_calls_of_a_namespace_say_so() -> None:
    inner = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    spaces = [
        {"type": "namespace", "name": name, "description": "d", "tools": inner} for name in "xy"
    ]
    with site() as here:
        for name, arguments, kind in (("f", "{}", "function_call"), ("g", '{"input": "i"}', "")):
            speaking(here, f'[{{"name": "y__{name}", "arguments": {arguments}}}]')
            [call] = both(here, tools=spaces, tool_choice="required")["output"]
            assert (call["name"], call["namespace"]) == (name, "y")
            assert call["type"] == (kind or "custom_tool_call")
            answer = {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "1"}
            turns = [{"role": "user", "content": "hi"}, call, answer]
            assert ask(here, tools=spaces, tool_choice="none", input=turns).status_code == 200
            [_, asked, _] = json.loads(rendered(here).messages)
            assert asked["tool_calls"][0]["function"]["name"] == f"y__{name}"


def test_logprobs_are_included_on_demand(shared_site: Site) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [message] = both(shared_site, **fields)["output"]
    found = message["content"][0]["logprobs"]
    assert len(found) == len("Hello from Baton.") + 1 and len(found[0]["top_logprobs"]) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ...}, "model"),
        ({"input": ...}, "input"),
        ({"input": []}, "input"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 10**6}, "input"),
        ({"tools": [ADD]}, "tool_choice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    shared_site: Site, fields: dict[str, Any], param: str
) -> None:
    answer = ask(shared_site, **fields)
    assert answer.status_code == 400 and error_of(answer)["param"] == param


def test_other_refusals(shared_site: Site) -> None:
    assert error_of(ask(shared_site, model="else"))["code"] == "model_not_found"
    body = {"model": MODEL, "input": "hi", "stream": True}
    durable = shared_site.post(PATH, body, headers={"x-stream-durable": "1"})
    assert "X-Stream-Durable" in error_of(durable)["message"]
    compact = shared_site.post(f"{PATH}/compact", {"model": MODEL, "input": "hi"})
    assert compact.status_code == 404 and "truncation" in error_of(compact)["message"]


def test_an_error_in_a_stream_is_its_last_event() -> None:
    with site() as here:
        here.engine.scheduler.fail = Failed(0, "broken", "It broke.", 500)
        here.engine.scheduler.fail_after = 3
        failed = response_of(named_events(ask(here, stream=True).text))
        assert failed["error"] == {"code": "server_error", "message": "It broke."}
        assert failed["output"][0]["content"][0]["text"] == "Hel"
        assert ask(here).status_code == 500


class Point(BaseModel):
    """What a client wants to have parsed."""

    x: int


@pytest.mark.row("F18.04")
def test_openais_client_creates_streams_and_parses() -> None:
    """Over a socket, where events are written past the reader's task."""
    with gateway_socket.site() as here:
        here.engine.scheduler.pace = 0.001
        client = OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0)
        said = client.responses.create(model=MODEL, input="hi")
        assert said.output_text == "Hello from Baton."
        with client.responses.stream(model=MODEL, input="hi") as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert "".join(deltas) == final.output_text == said.output_text and len(deltas) > 3
        here.engine.scheduler.reply = '{"x": 5}'
        parsed = client.responses.parse(model=MODEL, input="hi", text_format=Point)
        assert parsed.output_parsed == Point(x=5)


@pytest.mark.row("F18.05")
def test_openais_client_retrieves_lists_and_deletes() -> None:
    with gateway_socket.site() as here:
        client = OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0).responses
        said = client.create(model=MODEL, input="a", metadata={"a": "b"})
        found = client.retrieve(said.id)
        assert found.to_dict() == said.to_dict() and found.store is True  # type: ignore[attr-defined]
        with client.stream(model=MODEL, input="b", previous_response_id=said.id) as stream:
            final = stream.get_final_response()
        assert client.retrieve(final.id).output_text == final.output_text
        listed = list(client.input_items.list(final.id, order="asc", limit=2))
        assert [item.type for item in listed] == ["message"] * 3
        assert listed[1].id == said.output[0].id
        client.delete(said.id)
        with pytest.raises(NotFoundError):
            client.retrieve(said.id)
