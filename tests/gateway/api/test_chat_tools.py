"""Tool calls and thinking in chats: whole, streamed, demanded, refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from baton.protocol import Submit
from tests.fakes.gateway_app import Site, error_of, events_of, site, speaking

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "add"}}


def ask(own_site: Site, **fields: Any) -> httpx.Response:
    return own_site.chat(**({"max_tokens": 400, "tools": [ADD]} | fields))


def streamed(response: httpx.Response) -> dict[str, Any]:
    """The message that the deltas of choice 0 make, its finish reason and usage."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None}
    for event in events_of(response.text)[:-1]:
        message["usage"] = event.get("usage")
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call.get("id"):
                    message["calls"].append({"id": call["id"], "arguments": ""})
                    message["calls"][-1]["name"] = call["function"]["name"]
                message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            message["reason"] = message["reason"] or choice["finish_reason"]
    return message


@pytest.mark.row("F16.01", "F18.01")
def test_a_call_is_no_text_and_ends_the_answer() -> None:
    with site() as own_site:
        speaking(own_site, f"Let me see. {CALL}", tool_call_parser="hermes")
        whole = ask(own_site).json()["choices"][0]
        stream = streamed(ask(own_site, stream=True))
        assert whole["finish_reason"] == stream["reason"] == "tool_calls"
        [call] = whole["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "add")
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        assert whole["message"]["content"] == stream["content"] == "Let me see. "
        [other] = stream["calls"]
        assert other["arguments"] == call["function"]["arguments"] and other["name"] == "add"
        none = ask(own_site, tool_choice="none").json()["choices"][0]
        assert none["message"]["content"].endswith(CALL) and none["finish_reason"] == "stop"


@pytest.mark.row("F17.01")
def test_thinking_begins_where_the_prompt_says() -> None:
    with site() as own_site:
        reply = "hmm</think>\n\n4"
        speaking(own_site, reply, reasoning_parser="qwen3", tail="user: hi<think>\n")
        answer = ask(own_site, tools=[]).json()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert message["reasoning"] == message["reasoning_content"] == "hmm"
        assert message["content"] == "4" and "tool_calls" not in message
        assert usage["completion_tokens_details"]["reasoning_tokens"] == len("hmm</think>\n\n")
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = streamed(ask(own_site, tools=[], **options))
        assert (stream["reasoning"], stream["content"]) == ("hmm", "4")
        assert stream["usage"] == usage
        own_site.engine.tokenizer.tail = "user: hi"
        message = ask(own_site, tools=[]).json()["choices"][0]["message"]
        assert "reasoning" not in message and message["content"].startswith("hmm")


def test_a_demanded_call_has_a_grammar_on_any_model() -> None:
    with site() as own_site:
        speaking(own_site, '[{"name": "add", "arguments": {"a": 2}}]')
        for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
            answer = ask(own_site, tool_choice=choice).json()["choices"][0]
            [call] = answer["message"]["tool_calls"]
            assert call["function"] == {"name": "add", "arguments": '{"a": 2}'}
            assert (answer["message"]["content"], answer["finish_reason"]) == (None, reason)
        submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
        assert all(m.sampling.grammar.kind == "tool_calls" for m in submits)


def test_a_response_format_says_nothing_of_a_demanded_call() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    with site() as own_site:
        speaking(own_site, '[{"name": "add", "arguments": {"a": 2}}]')
        for one in (form, {"type": "json_object"}):
            answer = ask(own_site, tool_choice="required", response_format=one)
            assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
        submits = [m for m in own_site.engine.scheduler.seen if isinstance(m, Submit)]
        assert {m.sampling.grammar.kind for m in submits} == {"tool_calls"}
        form["json_schema"] = {"name": "n", "schema": {"not": {}}}
        assert ask(own_site, tool_choice="required", response_format=form).status_code == 400


def test_ids_of_calls_differ_between_choices_and_requests() -> None:
    with site() as own_site:
        speaking(own_site, CALL, tool_call_parser="hermes")
        ids = [
            choice["message"]["tool_calls"][0]["id"]
            for _ in range(2)
            for choice in ask(own_site, n=2).json()["choices"]
        ]
        assert len(set(ids)) == 4


def test_what_cannot_be_is_refused_by_name() -> None:
    with site() as own_site:
        error = error_of(ask(own_site))
        assert error["param"] == "tool_choice" and "--tool-call-parser" in error["message"]
        both = ask(own_site, tool_choice="required", guided_json={"type": "object"})
        assert "decides the whole output" in error_of(both)["message"] and both.status_code == 400


@pytest.mark.row("F16.01")
def test_a_scheduler_that_restarts_in_the_middle_of_a_call_changes_nothing() -> None:
    with site() as own_site:
        speaking(own_site, f"I add. {CALL}", tool_call_parser="hermes")
        plain = streamed(ask(own_site, stream=True))
        own_site.engine.scheduler.pace = 0.004

        async def disturbed() -> httpx.Response:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            asking = asyncio.create_task(
                own_site.client.post(
                    "/v1/chat/completions", json=body | {"tools": [ADD], "stream": True}
                )
            )
            for _ in range(3):
                await asyncio.sleep(0.08)
                own_site.engine.scheduler.restart()
                own_site.engine.tokenizer.restart()
            return await asking

        again = streamed(own_site.run(disturbed))
        for message in (plain, again):
            [call] = message["calls"]
            del call["id"]
        assert again == plain
