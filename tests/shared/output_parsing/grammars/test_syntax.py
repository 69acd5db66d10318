from __future__ import annotations

from typing import Any

import pytest

from baton.output_parsing.grammars.lark import Lark
from baton.output_parsing.grammars.syntax import EscapedCall, Function, JsonObject, Tags, bare
from baton.output_parsing.tools import Tools
from baton.structured_output.json_schema import SchemaError
from tests.support.model_outputs import function


def made(required: tuple[str, ...] = (), **properties: Any) -> Function:
    tool = function("f", **properties)
    parameters = tool["function"]["parameters"] | {"required": list(required)}
    tool["function"]["parameters"] = parameters
    return Function("f", parameters, Tools([tool]))


def test_arguments_have_no_properties_that_the_schema_does_not_name() -> None:
    assert made(a="string").schema["additionalProperties"] is False
    assert Function("f", {}, Tools()).schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    free = {"type": "object", "additionalProperties": {"type": "string"}}
    assert Function("f", free, Tools()).schema["additionalProperties"] == {"type": "string"}
    assert "additionalProperties" not in Function("f", {"type": "object"}, Tools()).schema


def test_required_arguments_come_first() -> None:
    found = made(("b",), a="string", b="string")
    assert found.listing({"a": "A", "b": "B"}, "").split() == ["B", "(", "A)?"]


def test_the_name_is_quoted_as_json() -> None:
    lark = Lark()
    assert '"name\\": \\"f\\"' in JsonObject(("<c>",), "</c>").call(lark, made(a="string"))


def test_values_as_text() -> None:
    lark = Lark()
    choices = bare(lark, made(a={"enum": ["x", 1, None]}), "a", "</a>")
    assert choices == '("x</a>" | "1</a>" | "null</a>")'
    assert bare(lark, made(a="integer"), "a", "</a>") == 'r0 "</a>"'
    assert bare(lark, made(a="string"), "a", "</a>") == "r1 "
    assert bare(lark, made(a={}), "a", "\n</a>\n") == 'r2 "\\n"'


def test_what_text_cannot_guarantee_is_refused() -> None:
    tags = Tags(("<f=NAME>", "</f>"), ("<p=KEY>", "</p>"))
    for schema in (
        {"type": "string", "format": "date"},
        {"type": ["string", "object"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}], "maximum": 3},
    ):
        with pytest.raises(SchemaError, match="'a'"):
            tags.call(Lark(), made(a=schema))
    gemma = EscapedCall("<c>", "<e>", "</c>")
    for schema in ({"type": "array", "minItems": 1}, {"anyOf": []}, {"type": ["string", "null"]}):
        with pytest.raises(SchemaError):
            gemma.call(Lark(), made(a=schema))
