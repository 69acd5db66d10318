from __future__ import annotations

from typing import Any

from baton.output_parsing.parser import OutputParser
from baton.output_parsing.response_template import declared_reasoning, declared_tools, literals
from baton.output_parsing.selection import select
from tests.support.model_outputs import calls_of, read

OWN: dict[str, Any] = {
    "fields": {
        "thinking": {"open": "<pondering>", "close": ["</pondering>", "<done>"], "content": "text"},
        "tool_calls": {"open": ["<do>"], "close": "</do>", "repeats": True, "content": "json"},
    }
}
QWEN: dict[str, Any] = {
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)"},
        },
    }
}
GEMMA: dict[str, Any] = {
    "fields": {
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "content_args": {"string_delims": [['<|"|>', '<|"|>']]},
        }
    }
}


def test_a_declaration_is_a_format_of_its_own() -> None:
    found = select(response_template=OWN)
    parser = OutputParser(found.tool_format, found.reasoning_format, start="content")
    text = '<pondering>so<done>yes<do>{"name": "f", "arguments": {}}</do>'
    message = read(parser, text)
    assert (message.reasoning, message.content) == ("so", "yes")
    assert calls_of(message) == [("f", {})]
    assert "as the checkpoint's response_template says" in found.reason


def test_a_declaration_of_a_known_format_chooses_its_row() -> None:
    for template, name in ((QWEN, "qwen3_xml"), (GEMMA, "gemma4")):
        found = select(response_template=template)
        assert found.tool_format is not None and found.tool_format.name == name
        assert "response_template has" in found.reason
    assert found.reasoning_format is None


def test_what_is_not_understood_is_no_format() -> None:
    for template in (
        {},
        {"fields": 3},
        {"fields": {"tool_calls": 3, "thinking": {"open": "<a>"}}},
        {"fields": {"tool_calls": {"open_pattern": "x(.*)"}, "thinking": {"close": "</a>"}}},
        {"fields": {"tool_calls": {"open": [3], "content": "json"}}},
        {"fields": {"tool_calls": {"open": "<a>", "content": "xml"}}},
    ):
        assert declared_tools(template) is None and declared_reasoning(template) is None
        found = select(response_template=template)
        assert found.tool_format is None and found.reasoning_format is None


def test_patterns_are_read_as_text() -> None:
    assert "<tool_call><function=" in literals(QWEN, "tool_calls")
    assert "<|tool_call>call:" in literals(GEMMA, "tool_calls")
