"""An answer that is free to call: any text without an opener, and valid calls behind one."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.output_parsing.grammars.auto_grammar import auto_grammar
from baton.output_parsing.grammars.tool_grammar import BLOCKS
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.selection import tool_format
from baton.protocol import Grammar
from baton.structured_output.json_schema import SchemaError
from baton.structured_output.llguidance import expression, problem, translate
from tests.support.model_outputs import ByteVocabulary, function, read

TOOLS = (
    function("search", text={"type": "string", "maxLength": 6}, page={"enum": [1, 2, 3]}),
    function("book-flight", seats={"type": "integer", "minimum": 1, "maximum": 99}),
)
for _tool, _key in zip(TOOLS, ("page", "seats"), strict=True):
    _tool["function"]["parameters"]["required"] = [_key]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
TOKENIZER = LLTokenizer(TokenizerWrapper(ByteVocabulary()))
BEGINNINGS: dict[str, tuple[str, ...]] = {
    "json": ("[",),
    "llama3_json": ("{", "<|python_tag|>"),
    "openai": ("<|channel|>commentary to=functions.",),
    "phi4mini": ("functools[",),
    "pythonic": ("[",),
    "xlam": ("[", "[TOOL_CALLS]", "<tool_call>"),
}
"""How calls begin, where it is not by an opener of the row."""


def follow(grammar: Grammar, text: str) -> LLMatcher | None:
    """The grammar after a text; None if it does not allow it."""
    matcher = LLMatcher(TOKENIZER, translate(grammar), log_level=0)
    tokens = list(text.encode())
    return matcher if matcher.try_consume_tokens(tokens) == len(tokens) else None


def allows(grammar: Grammar, text: str) -> bool:
    """Whether the grammar matches the whole text."""
    matcher = follow(grammar, text)
    return matcher is not None and matcher.is_accepting()


def finish(grammar: Grammar, text: str) -> str:
    """The text and, at random, what the grammar makes of it."""
    matcher, dice, out = follow(grammar, text), random.Random(7), bytearray(text.encode())
    assert matcher is not None, text
    while not matcher.is_accepting():
        bits = enumerate(matcher.compute_logit_bias())
        allowed = [token for token, bit in bits if bit]
        token = dice.choice([t for t in allowed if t < 128] or allowed)
        assert matcher.consume_token(token) and len(out) < 2000
        out.append(token)
    return out.decode()


def check_calls(name: str, text: str) -> None:
    """The text has calls, which are valid."""
    calls = read(OutputParser(tool_format(name), None, tools=TOOLS), [text]).tool_calls
    assert calls, (name, text)
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_calls_of_every_format_are_valid_and_texts_are_free() -> None:
    for name in BLOCKS:
        row = tool_format(name)
        grammar = auto_grammar(row, TOOLS)
        assert problem(grammar) is None, name
        assert allows(grammar, "Two < three, {and} [so] on: functools.") and allows(grammar, "")
        for opener in BEGINNINGS.get(name, row.openers):
            check_calls(name, finish(grammar, opener))
            if len(opener) > 1:
                check_calls(name, finish(grammar, f"I look it up. {opener}"))


def test_one_call_where_there_may_be_one() -> None:
    call = '<tool_call>\n{"name": "search", "arguments": {"page": 1}}\n</tool_call>'
    for parallel in (True, False):
        grammar = auto_grammar(tool_format("hermes"), TOOLS, parallel=parallel)
        assert allows(grammar, f"Well, {call} so.")
        assert allows(grammar, f"{call}\n{call}") == parallel
        assert not allows(grammar, call.replace("1", "7"))


def test_a_constrained_answer_may_call_too() -> None:
    for kind, source, good, bad in (
        ("json_schema", '{"type": "integer"}', "12", "x"),
        ("json_object", "", '{"a": 1}', "[1]"),
        ("regex", "a/b+", "a/bb", "ab"),
        ("choice", '["yes", "no"]', "no", "nope"),
    ):
        constraint: Any = Grammar(kind, source)  # type: ignore[arg-type]
        otherwise = expression(constraint)
        assert otherwise is not None
        grammar = auto_grammar(tool_format("hermes"), TOOLS, otherwise=otherwise)
        assert problem(grammar) is None
        assert allows(grammar, good) and not allows(grammar, bad)
        check_calls("hermes", finish(grammar, "<tool_call>"))
    assert expression(Grammar("structural_tag", "{}")) is None


def test_only_a_strict_tool_must_be_followed_to_the_letter() -> None:
    tool = function("find", day={"type": "string", "pattern": "^[0-9]+$"})
    grammar = auto_grammar(tool_format("glm45"), [tool])
    begin = "<tool_call>find\n<arg_key>day</arg_key>\n<arg_value>"
    assert allows(grammar, f"{begin}noon</arg_value>\n</tool_call>")
    for name in BLOCKS:
        assert problem(auto_grammar(tool_format(name), [tool])) is None
    tool["function"]["strict"] = True
    with pytest.raises(SchemaError, match="'pattern' of 'day'"):
        auto_grammar(tool_format("glm45"), [tool])
