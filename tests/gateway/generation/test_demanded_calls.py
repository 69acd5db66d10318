"""Requests that demand a call get its grammar; what cannot be demanded is refused."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton.output_parsing import Start
from baton.protocol import Grammar, Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation import sequence_builder
from baton_gateway.generation.demanded_calls import check_calls, demanding
from baton_gateway.generation.request import (
    EncodedPrompt,
    GenerationRequest,
    RequestIdentity,
    SamplingOptions,
    TextPrompt,
)
from baton_gateway.output_formats import OutputFormats, ToolOptions
from baton_gateway.structured_output.request import Constraint

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
FACTS = ModelInfo("m", 100, 10, (), formats=OutputFormats())
PROMPT = EncodedPrompt(PackedTokens(b""))


def request(choice: str, constraint: Constraint | None = None) -> GenerationRequest:
    return GenerationRequest(
        RequestIdentity("r1"),
        (TextPrompt("hi"),),
        SamplingOptions(Sampling(0), constraint=constraint),
        tools=ToolOptions((TOOL,), choice),
    )


def test_only_a_demanded_call_has_a_grammar() -> None:
    asked = request("none")
    assert demanding(asked, [PROMPT], FACTS) is asked
    found = demanding(request("required"), [PROMPT], FACTS).sampling
    assert found.constraint is not None and found.params.grammar == found.constraint.grammar


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
