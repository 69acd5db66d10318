"""Thinking comes before what is constrained, and is bounded where that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.protocol import EncodeChat, Grammar, Submit, Thinking
from tests.fakes.gateway_app import Site, error_of, events_of, site, speaking

OPENED = "user: hi<think>\n"
JSON = {"type": "json_object"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def submitted(here: Site) -> Grammar | None:
    last = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)][-1]
    return last.sampling.grammar


def asked(here: Site, **fields: Any) -> Grammar | None:
    response = here.chat(max_tokens=99, **fields)
    assert response.status_code == 200, response.text
    return submitted(here)


def test_a_constraint_comes_behind_the_thinking() -> None:
    with site() as here:
        speaking(here, 'hmm</think>\n\n{"a": 1}', reasoning_parser="qwen3", tail=OPENED)
        message = here.chat(max_tokens=99, response_format=JSON).json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("hmm", '{"a": 1}')
        grammar = submitted(here)
        assert grammar is not None and grammar.kind == "json_object"
        assert grammar.thinking == Thinking("<think>", "</think>", opened=True)
        stream = here.chat(max_tokens=99, response_format=JSON, stream=True)
        deltas = [e["choices"][0]["delta"] for e in events_of(stream.text)[:-1]]
        assert "".join(d.get("content") or "" for d in deltas) == '{"a": 1}'
        here.engine.tokenizer.tail = "user: hi"
        grammar = asked(here, response_format=JSON)
        assert grammar is not None and grammar.thinking is not None
        assert not grammar.thinking.opened


def test_a_budget_goes_to_the_worker_with_any_grammar() -> None:
    with site() as here:
        speaking(here, "hmm</think>ok", reasoning_parser="qwen3", tail=OPENED)
        grammar = asked(here, thinking_token_budget=0)
        assert grammar == Grammar(
            "text", "", thinking=Thinking("<think>", "</think>", opened=True, budget=0)
        )
        grammar = asked(here, thinking_token_budget=7, response_format=JSON)
        assert grammar is not None and grammar.kind == "json_object"
        assert grammar.thinking is not None and grammar.thinking.budget == 7
        demanded = asked(here, thinking_token_budget=7, tools=[TOOL], tool_choice="required")
        assert demanded is not None and demanded.thinking is not None
        assert "</think>" not in demanded.source  # the thinking is not said twice
        assert asked(here) is None


def test_who_does_not_think_keeps_any_budget() -> None:
    with site() as here:
        speaking(here, "ok")
        assert asked(here, thinking_token_budget=7) is None


def test_a_budget_that_cannot_be_kept_is_refused_by_name() -> None:
    with site() as here:
        speaking(here, "ok", reasoning_parser="gpt_oss")
        refused = error_of(here.chat(thinking_token_budget=7))
        assert refused["param"] == "thinking_token_budget" and "gpt_oss" in refused["message"]
        beams = error_of(here.chat(thinking_token_budget=7, use_beam_search=True, temperature=0))
        assert beams["param"] == "thinking_token_budget"
        assert error_of(here.chat(thinking_token_budget=-1))["code"] == "integer_below_min_value"


def test_the_template_is_told_the_effort(own_site: Site) -> None:
    def kwargs(**fields: Any) -> dict[str, Any]:
        asked(own_site, **fields)
        last = [m for m in own_site.engine.tokenizer.seen if isinstance(m, EncodeChat)][-1]
        found: dict[str, Any] = msgspec.json.decode(last.kwargs)
        return found

    assert kwargs(reasoning_effort="low") == {"reasoning_effort": "low"}
    off = {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    assert kwargs(reasoning_effort="none") == off
    said = {"enable_thinking": True}
    assert kwargs(reasoning_effort="none", chat_template_kwargs=said) == off | said
    assert error_of(own_site.chat(reasoning_effort="much"))["param"] == "reasoning_effort"
