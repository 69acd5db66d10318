from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from baton.output_parsing.grammars.tool_grammar import BLOCKS, tool_grammar
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.reasoning_format import Start
from baton.output_parsing.selection import reasoning_format, tool_format
from baton.output_parsing.tool_formats import TOOL_FORMATS
from baton.protocol import Grammar
from baton.structured_output.json_schema import SchemaError
from baton.structured_output.llguidance import problem, translate
from tests.support.model_outputs import ByteVocabulary, function, read

SHORT = {"type": "string", "maxLength": 6}
TOOLS = (
    function(
        "book-flight",
        to={"enum": ["Paris", 'a "b"\n<c>']},
        seats={"type": "integer", "minimum": 1, "maximum": 99},
        note=SHORT,
        meal={"type": "boolean"},
        stops={"type": "array", "items": {"enum": ["x", "y"]}},
        card={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    ),
    function("search", text=SHORT, page={"type": ["integer", "null"], "maximum": 9, "minimum": 0}),
    function("now"),
)
for _tool, _required in zip(TOOLS, (["to", "seats"], [], []), strict=True):
    _tool["function"]["parameters"]["required"] = _required
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


TOKENIZER = LLTokenizer(TokenizerWrapper(ByteVocabulary()))


def sample(grammar: Grammar, seed: int) -> str:
    """A random text of a grammar; free text is ASCII, thoughts are short."""
    brief = translate(grammar).replace("/(?s:.*)/\n", "/(?s:.{0,9})/\n")
    matcher = LLMatcher(TOKENIZER, brief, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    dice, text = random.Random(seed), bytearray()
    for _ in range(4000):
        allowed = [i for i, bit in enumerate(matcher.compute_logit_bias()) if bit]
        token = dice.choice([i for i in allowed if i < 128 or i == 256] or allowed)
        if token == 256 or (256 in allowed and dice.random() < 0.4):
            return text.decode()
        assert matcher.consume_token(token)
        text.append(token)
    raise AssertionError("the sample does not end")


def check(call: Any, choice: str) -> None:
    """A call is one of the tools and its arguments are valid."""
    assert choice in ("required", call.name)
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def check_samples(name: str, choice: str, parallel: bool) -> None:
    """Random texts of a grammar are calls of the choice, as the row reads them."""
    row = tool_format(name)
    grammar = tool_grammar(row, TOOLS, choice, parallel=parallel)
    assert problem(grammar) is None
    for seed in range(10):
        text = sample(grammar, seed)
        message = read(OutputParser(row, None, tools=TOOLS), [text])
        assert message.error is None and not (message.content or "").strip(), text
        assert len(message.tool_calls) > 0 and (parallel or len(message.tool_calls) == 1), text
        for call in message.tool_calls:
            check(call, choice)


def test_what_a_grammar_allows_its_row_reads_as_valid_calls() -> None:
    for name in BLOCKS:
        for choice, parallel in (("required", True), ("required", False), ("search", True)):
            check_samples(name, choice, parallel)


def test_every_row_has_a_grammar() -> None:
    assert {row.name for row in TOOL_FORMATS} == set(BLOCKS)


def test_thinking_comes_first() -> None:
    def source(tool: str, reasoning: str, start: Start) -> str:
        grammar = tool_grammar(
            tool_format(tool),
            TOOLS[2:],
            reasoning_format=reasoning_format(reasoning),
            start=start,
        )
        assert problem(grammar) is None
        return grammar.source

    def allows(lark: str, text: str) -> bool:
        matcher = LLMatcher(TOKENIZER, translate(Grammar("grammar", lark)), log_level=0)
        return bool(matcher.try_consume_tokens(list(text.encode())) == len(text.encode()))

    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    opened = source("hermes", "deepseek_r1", "thinking")
    assert allows(opened, f"so <tool_call> is</think>\n\n{call}") and not allows(
        opened, "</think>x"
    )
    free = source("hermes", "qwen3", "content")
    assert allows(free, call) and allows(free, f"<think>so</think>\n{call}")
    assert not allows(free, f"so</think>{call}")
    harmony = source("openai", "gpt_oss", "content")
    head = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    assert allows(harmony, head)
    assert allows(harmony, f"<|channel|>analysis<|message|>so<|end|><|start|>assistant{head}")


def test_what_a_format_cannot_guarantee_is_refused() -> None:
    tools = [function("f", a={"type": "string", "pattern": "^a"})]
    with pytest.raises(SchemaError, match="'pattern' of 'a'"):
        tool_grammar(tool_format("glm45"), tools)
    assert tool_grammar(tool_format("hermes"), tools)
    union = [function("f", a={"anyOf": [{"type": "string"}, {"type": "array"}]})]
    with pytest.raises(SchemaError, match="look alike"):
        tool_grammar(tool_format("qwen3_xml"), union)
    with pytest.raises(SchemaError, match="no function 'g'"):
        tool_grammar(tool_format("hermes"), tools, "g")


def test_references_are_kept() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
        "$defs": {"n": {"type": "integer", "minimum": 3, "maximum": 4}},
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    for name in ("hermes", "glm45", "pythonic"):
        text = sample(tool_grammar(tool_format(name), [tool], parallel=False), 0)
        (call,) = read(OutputParser(tool_format(name), None, tools=[tool]), [text]).tool_calls
        assert json.loads(call.arguments)["a"] in (3, 4)
