"""Structured output with real weights: what comes out of the official client is valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from tests.support.served_system import Served

pytestmark = pytest.mark.slow

MODEL = "SmolLM2-135M-Instruct"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Describe Ada, who is 36, with her hobbies, as JSON."}]


@pytest.fixture(scope="module")
def client(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    system = Served(tmp_path_factory.mktemp("structured"), None)
    try:
        url = system.ready().url
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            yield client
    finally:
        system.close()


def ask(client: openai.OpenAI, **fields: Any) -> openai.types.chat.chat_completion.Choice:
    fields = {"max_tokens": 200, "temperature": 0.0} | fields
    answer = client.chat.completions.create(model=MODEL, messages=ASK, **fields)  # type: ignore[call-overload]
    choice: openai.types.chat.chat_completion.Choice = answer.choices[0]
    return choice


@pytest.mark.row("F10.01")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema(client: openai.OpenAI, temperature: float) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    choice = ask(client, response_format=asked, temperature=temperature, seed=7)
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), PERSON)


@pytest.mark.row("F10.01")
def test_any_object_streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,  # type: ignore[arg-type]
        response_format={"type": "json_object"},
        temperature=0.0,
        max_tokens=300,
        stream=True,
    )
    events = list(stream)
    text = "".join(event.choices[0].delta.content or "" for event in events)
    if events[-1].choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    assert text.startswith("{")


@pytest.mark.row("F10.02", "F10.03", "F10.04", "F10.05", "F10.06")
def test_other_constraints(client: openai.OpenAI) -> None:
    def content(**outputs: Any) -> str:
        return ask(client, extra_body=outputs).message.content or ""

    regex = r"Ada is [0-9]{2}\."
    assert re.fullmatch(regex, content(structured_outputs={"regex": regex}))
    assert content(structured_outputs={"choice": ["young", "old"]}) in ("young", "old")
    assert content(guided_choice=["young", "old"]) in ("young", "old")
    gbnf = 'root ::= "Ada" (" likes " [a-z]+){1,2} "."'
    assert re.fullmatch(r"Ada( likes [a-z]+){1,2}\.", content(guided_grammar=gbnf))


def test_a_bad_schema_is_the_clients_error_and_costs_nothing(client: openai.OpenAI) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "r", "schema": {"type": "stsring"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: stsring"):
        ask(client, response_format=asked)
    assert ask(client, max_tokens=5).message.content


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "forecast", "parameters": WEATHER}}


@pytest.mark.row("F18.01")
def test_a_demanded_call_is_valid_with_a_model_that_knows_no_tools(client: openai.OpenAI) -> None:
    """Whole and streamed, over some seeds; then a turn that answers the call."""
    for seed in range(4):
        asked = {"tools": [TOOL], "tool_choice": "required", "temperature": 1.0, "seed": seed}
        choice = ask(client, parallel_tool_calls=False, **asked)
        [call] = choice.message.tool_calls or ()
        assert choice.finish_reason == "tool_calls" and call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, max_tokens=200, parallel_tool_calls=False, **asked
    ) as stream:  # type: ignore[call-overload]
        final = stream.get_final_completion().choices[0]
    assert [c.function.arguments for c in final.message.tool_calls] == [call.function.arguments]
    turn = [*ASK, choice.message.model_dump(exclude_none=True)]
    turn.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny."})
    answer = client.chat.completions.create(model=MODEL, messages=turn, max_tokens=8)  # type: ignore[arg-type]
    assert answer.choices[0].finish_reason in ("stop", "length")
