from __future__ import annotations

import json

from baton.output_parsing.bodies.bare_values import as_json
from baton.output_parsing.tools import Types
from tests.support.model_outputs import calls_of, function, parse


def value(text: str, *types: str) -> object:
    return json.loads(as_json(text, Types(types)))


def test_the_schema_gives_the_type() -> None:
    for text in ("12", "true", "null", '{"a": 1}', " x\n", '"x"'):
        assert value(text, "string") == text
    assert value(" 12 ", "integer") == 12 and value("-1.5e3", "number") == -1500
    assert value("True", "boolean") is True and value("false", "boolean") is False
    assert value("null", "null") is None
    assert value('{"a": [1]}', "object") == {"a": [1]}
    assert value("{'a': True}", "object") == {"a": True}
    assert value("['a', None]", "array") == ["a", None]


def test_numbers_keep_their_digits() -> None:
    assert as_json("12345678901234567890", Types({"integer"})) == "12345678901234567890"
    assert as_json("1.50", Types({"number"})) == "1.50"


def test_what_does_not_fit_is_text() -> None:
    assert value("twelve", "integer") == "twelve" and value("007", "integer") == "007"
    assert value("yes", "boolean") == "yes" and value("None", "null") == "None"
    assert value("[1", "array") == "[1" and value("[1]", "object") == "[1]"
    assert value("{a}", "object") == "{a}" and value("[1] x", "array") == "[1] x"


def test_of_several_types_the_string_comes_last() -> None:
    union = ("string", "null", "integer", "boolean", "array")
    assert [value(t, *union) for t in ("null", "1", "TRUE", "[1]", "x")] == [
        None,
        1,
        True,
        [1],
        "x",
    ]


def test_without_a_type_json_is_json() -> None:
    assert [value(t) for t in ("1", "[1]", "true", "null", "x y")] == [1, [1], True, None, "x y"]


def test_json_where_no_string_is_allowed() -> None:
    assert value('"x"', "integer") == "x"


def test_values_with_lines_tags_and_entities_are_kept() -> None:
    text = "\n<b> &amp; \"q\" 'r' </arg>\n\n"
    for name, shape in (
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>"),
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="f"><parameter name="a">{}</parameter></invoke>',
        ),
        ("qwen3_xml", "<tool_call><function=f><parameter=a>\n{}\n</parameter></function>"),
    ):
        for tools in ([function("f", a="string")], None):
            message = parse(shape.replace("{}", text), name, tools=tools)
            assert calls_of(message) == [("f", {"a": text})], name


def test_newlines_around_a_value() -> None:
    def read(name: str, value: str) -> str:
        opener = {"qwen3_xml": "<tool_call>", "seed_oss": "<seed:tool_call>"}[name]
        text = f"{opener}<function=f><parameter=a>{value}</parameter></function>"
        message = parse(text, name, tools=[function("f", a="string")])
        return str(calls_of(message)[0][1]["a"])

    assert read("qwen3_xml", "\nx\n") == read("qwen3_xml", "x") == "x"
    assert read("qwen3_xml", "\n\nx\n\n") == "\nx\n" and read("qwen3_xml", "x\n") == "x\n"
    assert read("seed_oss", "\nx\n") == read("seed_oss", "x") == "x"
    assert read("seed_oss", "\nx") == "\nx" and read("seed_oss", "x\n") == "x\n"
    assert read("qwen3_xml", "") == read("seed_oss", "") == ""


def test_a_schema_with_null_keeps_words_apart_from_it() -> None:
    tools = [function("f", a={"type": ["string", "null"]})]
    for text, expected in (("null", None), ("nullable", "nullable"), ("x", "x")):
        call = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
        assert calls_of(parse(call, "glm45", tools=tools)) == [("f", {"a": expected})]
