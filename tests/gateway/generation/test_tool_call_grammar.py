"""Requests that demand a call, or whose calls must be valid, get its grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.output_parsing import Start, tool_format
from baton.protocol import Grammar, Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton.structured_output.llguidance import problem
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation import sequence_builder
from baton_gateway.generation.request import (
    EncodedPrompt,
    GenerationRequest,
    RequestIdentity,
    SamplingOptions,
    TextPrompt,
)
from baton_gateway.generation.tool_call_grammar import check_calls, with_call_grammar
from baton_gateway.output_formats import OutputFormats, ToolOptions
from baton_gateway.structured_output.request import Constraint

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object"}},
}
FACTS = ModelInfo("m", 100, 10, (), formats=OutputFormats())
HERMES = replace(FACTS, formats=OutputFormats(tool_format("hermes")))
PROMPT = EncodedPrompt(PackedTokens(b""))


def request(choice: str, constraint: Constraint | None = None) -> GenerationRequest:
    return GenerationRequest(
        RequestIdentity("r1"),
        (TextPrompt("hi"),),
        SamplingOptions(Sampling(0), constraint=constraint),
        tools=ToolOptions((TOOL,), choice),
    )


def test_a_demanded_call_has_a_grammar() -> None:
    asked = request("none")
    assert with_call_grammar(asked, [PROMPT], FACTS, "llguidance") is asked
    found = with_call_grammar(request("required"), [PROMPT], FACTS, "llguidance").sampling
    assert found.constraint is not None and found.params.grammar == found.constraint.grammar


def made(
    constraint: Constraint | None, *, strict: bool, engine: str = "llguidance"
) -> Constraint | None:
    asked = request("auto", constraint)
    assert asked.tools is not None
    tool = {"type": "function", "function": TOOL["function"] | {"strict": strict}}
    asked = replace(asked, tools=replace(asked.tools, tools=(tool,)))
    check_calls(asked, HERMES)
    return with_call_grammar(asked, [PROMPT], HERMES, engine).sampling.constraint


def test_a_free_choice_has_a_grammar_beside_a_constraint_or_with_strict_tools() -> None:
    schema = Constraint(Grammar("json_schema", '{"type": "integer"}'), "response_format", "n")
    assert made(None, strict=False) is None
    for constraint in (schema, None):
        found = made(constraint, strict=True)
        assert found is not None and found.grammar.kind == "tool_calls"
        assert problem(found.grammar) is None
    beside = made(schema, strict=False)
    assert beside is not None and "<tool_call>" in beside.grammar.source
    assert (beside.param, beside.name) == ("response_format", "n")
    assert made(schema, strict=False, engine="xgrammar") is schema
    tag = Constraint(Grammar("structural_tag", "{}"), "response_format")
    assert made(tag, strict=False) is tag
    with pytest.raises(InvalidRequest, match="'structural_tag' cannot stand beside"):
        made(tag, strict=True)


def test_what_cannot_be_demanded_is_refused_before_encoding() -> None:
    check_calls(request("required"), FACTS)
    with pytest.raises(InvalidRequest, match="decides the whole output"):
        constraint = Constraint(Grammar("json_object", ""), "response_format")
        check_calls(request("add", constraint), FACTS)
    with pytest.raises(InvalidRequest, match="--tool-call-parser"):
        check_calls(request("auto"), FACTS)


def test_a_resumed_stream_begins_where_it_began() -> None:
    starts: tuple[Start, ...] = ("thinking",)
    asked = request("required")
    assert asked.tools is not None
    options = ToolOptions(asked.tools.tools, "required", starts=starts)
    assert sequence_builder.starts(options, [PROMPT], FACTS) == starts
