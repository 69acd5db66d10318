"""The Messages API over the fake engine: whole, streamed, counted, refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from baton.protocol import EncodeChat, Failed, Submit, Thinking
from tests.fakes import gateway_socket
from tests.fakes.gateway_app import Site, site, speaking
from tests.fakes.gateway_engine import MODEL
from tests.support.gateway.message_events import message_of, named_events

PATH = "/v1/messages"
FAILED = Failed(0, "broken", "It broke.", 500)
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}


def ask(here: Site, path: str = PATH, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 400} | fields
    return here.post(path, {k: v for k, v in body.items() if v is not ...})


def both(here: Site, **fields: Any) -> dict[str, Any]:
    """The message, which is the same whole and streamed but for its id."""
    whole = ask(here, **fields).json()
    stream = message_of(named_events(ask(here, stream=True, **fields).text))
    ids = [message.pop("id") for message in (whole, stream)]
    assert all(number.startswith("msg_") for number in ids) and len(set(ids)) == 2
    calls = [[b.pop("id") for b in m["content"] if "id" in b] for m in (whole, stream)]
    assert all(number.startswith("toolu_") for number in calls[0] + calls[1])
    assert whole == stream
    return whole | {"calls": calls[0]}


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert response.headers["request-id"] == body["request_id"]
    return response.status_code, body["error"]["type"], body["error"]["message"]


def rendered(here: Site) -> EncodeChat:
    """The newest conversation that the tokenizer was given."""
    return [m for m in here.engine.tokenizer.seen if isinstance(m, EncodeChat)][-1]


def thinking_of(here: Site) -> Thinking | None:
    """How the newest request bounds its thinking."""
    [*_, submit] = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
    return submit.sampling.grammar.thinking if submit.sampling.grammar else None


def test_a_text_ends_by_itself_at_a_stop_sequence_or_at_the_limit(shared_site: Site) -> None:
    said = both(shared_site, system="Be brief.")
    assert said["content"] == [text_block("Hello from Baton.")]
    assert (said["type"], said["role"], said["model"]) == ("message", "assistant", MODEL)
    assert (said["stop_reason"], said["stop_sequence"]) == ("end_turn", None)
    assert said["usage"]["output_tokens"] == len("Hello from Baton.") + 1
    said = both(shared_site, stop_sequences=["from"])
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", "from")
    assert said["content"] == [text_block("Hello ")]
    said = both(shared_site, max_tokens=3)
    assert (said["stop_reason"], said["usage"]["output_tokens"]) == ("max_tokens", 3)
    assert said["content"] == [text_block("Hel")]


def test_tokens_are_counted_as_they_are_used(shared_site: Site) -> None:
    fields = {"system": [{"type": "text", "text": "Be brief."}]}
    usage = ask(shared_site, **fields).json()["usage"]
    counted = ask(shared_site, f"{PATH}/count_tokens", max_tokens=..., **fields)
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted.json() == {"input_tokens": prompt} and prompt > 0
    assert counted.headers["request-id"] == counted.headers["x-request-id"]


def test_the_options_reach_the_model(shared_site: Site) -> None:
    options = {"temperature": 0.5, "top_p": 0.25, "top_k": 7}
    said = ask(shared_site, **options, thinking={"type": "disabled"}, max_tokens=5)
    assert said.status_code == 200
    [*_, submit] = [m for m in shared_site.engine.scheduler.seen if isinstance(m, Submit)]
    how = submit.sampling
    assert {name: getattr(how, name) for name in options} == options and how.max_tokens == 5
    assert json.loads(rendered(shared_site).kwargs) == {"enable_thinking": False}
    last = {"role": "assistant", "content": "I "}
    assert ask(shared_site, messages=[USER, last]).status_code == 200
    asked = rendered(shared_site)
    assert asked.continue_final_message and not asked.add_generation_prompt


def test_a_call_is_a_block_and_its_result_goes_back() -> None:
    with site() as here:
        speaking(here, f"I add.{CALL}", tool_call_parser="hermes")
        said = both(here, tools=[ADD])
        text, call = said["content"]
        assert text == text_block("I add.")
        direct = {"caller": {"type": "direct"}}
        assert call == {"type": "tool_use", "name": "add", "input": {"a": 1}} | direct
        assert said["stop_reason"] == "tool_use"
        content = [text, call | {"id": said["calls"][0]}]
        result = {"type": "tool_result", "tool_use_id": said["calls"][0], "content": "2"}
        turns = [USER, {"role": "assistant", "content": content}]
        turns += [{"role": "user", "content": [result, {"type": "text", "text": "and?"}]}]
        assert ask(here, tools=[ADD], messages=turns).status_code == 200
        roles = [message["role"] for message in json.loads(rendered(here).messages)]
        assert roles == ["user", "assistant", "tool", "user"]
        status, _, message = error_of(ask(here, tools=[ADD], messages=turns[:2]))
        assert status == 400 and "tool" in message


def test_a_demanded_call_ends_in_tool_use() -> None:
    with site() as here:
        speaking(here, '[{"name": "add", "arguments": {"a": 2}}]')
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            said = both(here, tools=[ADD], tool_choice=choice)
            assert [block["input"] for block in said["content"]] == [{"a": 2}]
            assert said["stop_reason"] == "tool_use"


def test_thinking_is_signed_and_goes_back_unchanged() -> None:
    with site() as here:
        speaking(here, "hmm</think>\n\n4", reasoning_parser="qwen3", tail="user: hi<think>\n")
        said = both(here, thinking={"type": "enabled", "budget_tokens": 100})
        thinking, text = said["content"]
        assert (thinking["thinking"], text) == ("hmm", text_block("4"))
        assert json.loads(rendered(here).kwargs) == {"enable_thinking": True}
        turns = [USER, {"role": "assistant", "content": said["content"]}, USER]
        assert ask(here, messages=turns).status_code == 200
        assert json.loads(rendered(here).messages)[1]["reasoning_content"] == "hmm"
        thinking["thinking"] = "hum"
        assert "not the signature" in error_of(ask(here, messages=turns))[2]


def test_a_budget_of_thinking_is_that_of_chats() -> None:
    enabled = {"type": "enabled", "budget_tokens": 7}
    rows = (
        (enabled, 7, True),
        ({"type": "adaptive"}, None, True),
        ({"type": "disabled"}, 0, False),
    )
    with site() as here:
        speaking(here, "hmm</think>4", reasoning_parser="qwen3", tail="user: hi<think>\n")
        for thinking, budget, on in rows:
            assert ask(here, thinking=thinking).status_code == 200
            assert json.loads(rendered(here).kwargs) == {"enable_thinking": on}
            assert thinking_of(here) == (
                None if budget is None else Thinking("<think>", "</think>", True, budget=budget)
            ), thinking
        both(here, thinking=enabled)
        assert ask(here, f"{PATH}/count_tokens", max_tokens=..., thinking=enabled).is_success
        for budget, status in ((399, 200), (400, 400)):
            sent = {"type": "enabled", "budget_tokens": budget}
            assert ask(here, thinking=sent).status_code == status
            assert ask(here, thinking=sent | {"type": "adaptive"}).status_code == 200
    for parser in ({}, {"reasoning_parser": "gpt_oss"}):
        with site() as here:
            speaking(here, "ok", **parser)
            for thinking, _, _ in rows:
                assert ask(here, thinking=thinking).status_code == 200, (parser, thinking)
                assert thinking_of(here) is None


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].source"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "schema for output_config.format",
        ),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"thinking": {"type": "some"}}, "thinking.type: Invalid value"),
        (
            {"messages": [USER, {"role": "assistant", "content": [USE]}, USER]},
            "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1.",
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 400}}, "budget_tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    shared_site: Site, fields: dict[str, Any], word: str
) -> None:
    status, kind, message = error_of(ask(shared_site, **fields))
    assert (status, kind) == (400, "invalid_request_error") and word in message


def test_a_text_follows_the_schema_of_the_client() -> None:
    class Point(BaseModel):
        x: int

    said = '{"x": 5}'
    with gateway_socket.site() as here:
        here.engine.scheduler.reply = said
        with Anthropic(base_url=here.url, api_key="none", max_retries=0) as client:
            turns: Any = [USER]
            answer = client.messages.parse(
                model=MODEL, max_tokens=99, messages=turns, output_format=Point
            )
            assert answer.parsed_output == Point(x=5)
            older = {"type": "json_schema", "schema": Point.model_json_schema()}
            client.messages.create(
                model=MODEL, max_tokens=99, messages=turns, extra_body={"output_format": older}
            )
        submits = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
    assert [m.sampling.grammar.kind for m in submits if m.sampling.grammar] == ["json_schema"] * 2


def test_errors_have_their_shape_wherever_they_come_from() -> None:
    with site(api_key="secret") as here:
        assert error_of(ask(here))[:2] == (401, "authentication_error")
        body = {"model": MODEL, "messages": [USER], "max_tokens": 4}
        mine = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
        assert here.post(PATH, body, headers=mine).status_code == 200
        assert here.post(PATH, body, headers={"x-api-key": "else"}).status_code == 401
        unknown = here.post(PATH, body | {"model": "else"}, headers=mine)
        assert error_of(unknown)[:2] == (404, "not_found_error")
        assert error_of(here.get(PATH, headers=mine))[:2] == (405, "invalid_request_error")
        lost = here.post(f"{PATH}/strange", body, headers=mine)
        assert error_of(lost)[:2] == (404, "not_found_error")
        durable = mine | {"x-stream-durable": "1"}
        refused = here.post(PATH, body | {"stream": True}, headers=durable)
        assert "X-Stream-Durable" in error_of(refused)[2]


def test_an_error_in_a_stream_is_an_event() -> None:
    with site() as here:
        here.engine.scheduler.fail, here.engine.scheduler.fail_after = FAILED, 3
        *_, last = named_events(ask(here, stream=True).text)
        assert last["type"] == "error" and last["error"]["type"] == "api_error"
        assert last["request_id"].startswith("req_")


def test_a_stream_over_a_socket_is_the_same() -> None:
    """There events are written past the reader's task."""
    body = {"model": MODEL, "messages": [USER], "max_tokens": 400, "stream": True}
    with gateway_socket.site() as here:
        here.engine.scheduler.pace = 0.001
        response = httpx.post(f"{here.url}{PATH}", json=body, timeout=60)
    said = message_of(named_events(response.text))
    assert said["content"] == [text_block("Hello from Baton.")]
    assert response.headers["content-type"].startswith("text/event-stream")
