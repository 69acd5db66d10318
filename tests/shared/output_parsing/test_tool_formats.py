from __future__ import annotations

from typing import Any

import pytest

from baton.output_parsing.source import delimiters
from baton.output_parsing.tool_formats import TOOL_FORMATS
from tests.support.model_outputs import EXAMPLES, Example, calls_of, parse

ROWS = {
    "F16.01": "hermes",
    "F16.02": "glm4",
    "F16.03": "glm45",
    "F16.04": "glm47",
    "F16.05": "glm4_moe",
    "F16.06": "json",
    "F16.07": "openai",
    "F16.08": "llama",
    "F16.09": "llama3_json",
    "F16.10": "llama4_json",
    "F16.11": "llama4_pythonic",
    "F16.12": "mistral",
    "F16.13": "deepseek_v3",
    "F16.14": "deepseek_v31",
    "F16.15": "deepseek_v32",
    "F16.16": "internlm",
    "F16.17": "internlm2",
    "F16.18": "jamba",
    "F16.19": "pythonic",
    "F16.20": "olmo3",
    "F16.21": "granite",
    "F16.22": "granite-20b-fc",
    "F16.23": "kimi_k2",
    "F16.24": "phi4mini",
    "F16.25": "longcat",
    "F16.26": "xlam",
    "F16.27": "gigachat3",
    "F16.28": "functiongemma",
    "F16.29": "hunyuan",
    "F16.30": "hunyuan_a13b",
    "F16.31": "ernie45",
    "F16.32": "seed_oss",
    "F16.33": "minimax",
    "F16.34": "minimax_m2",
    "F16.35": "step3",
    "F16.36": "step3p5",
    "F16.37": "qwen3_xml",
    "F16.38": "qwen3coder",
    "F16.39": "qwen_vl",
}


def examples(name: str) -> list[Example]:
    """The examples that are written for a name or another name of the same row."""
    row = next(row for row in TOOL_FORMATS if name in (row.name, *row.aliases))
    return [e for e in EXAMPLES if e.parser in (row.name, *row.aliases)]


def marked(rows: dict[str, str]) -> list[Any]:
    """Parameters that are marked with their feature rows."""
    return [pytest.param(n, marks=pytest.mark.row(row), id=n) for row, n in rows.items()]


NEWER = (
    *("cohere_command3", "gemma4", "lfm2", "granite4", "mimo", "qwen3_json", "phi4_mini_json"),
    *("deepseek_v4", "hy_v3", "apertus"),
)


@pytest.mark.parametrize("name", [*marked(ROWS), *NEWER])
def test_a_format(name: str) -> None:
    """Whole and in parts of any size; cut off anywhere: never another call, never nothing."""
    assert examples(name)
    for example in examples(name):
        whole = parse(example.text, name, tools=example.tools)
        assert calls_of(whole) == list(example.calls)
        assert (whole.content, whole.reasoning) == (example.content, example.reasoning)
        assert whole.error is None and whole.finish_reason == "tool_calls"
        for size in (1, 2, 3, 7):
            cuts = range(0, len(example.text), size)
            assert parse(example.text, name, cuts=cuts, tools=example.tools) == whole
        for end in range(len(example.text)):
            check_cut_off(example, name, example.text[:end])


def check_cut_off(example: Example, name: str, text: str) -> None:
    """What a text that ends too early is read as."""
    message = parse(text, name, tools=example.tools)
    found = calls_of(message)
    assert found == list(example.calls)[: len(found)]
    if text.strip() and not (found or message.error or text.endswith("<|message|>")):
        assert message.content is not None or message.reasoning is not None


def test_no_name_means_two_formats() -> None:
    names = [name for row in TOOL_FORMATS for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


def test_no_delimiter_is_hidden_inside_another_one() -> None:
    """`Delimiters` finds the first that is complete."""
    for row in TOOL_FORMATS:
        for outer in delimiters(*row.openers).literals:
            inner = outer[1:-1]
            assert not any(other in inner for other in row.openers), row.name


def test_an_unknown_function_is_a_call_all_the_same() -> None:
    for example in EXAMPLES:
        assert calls_of(parse(example.text, example.parser, tools=None))


def test_json_without_a_name_is_content() -> None:
    for text in ('{"a": 1}', '[{"a": 1}]', "[1, 2]", '{"name": "Ada", "age": 36}'):
        for name in ("json", "llama3_json", "xlam"):
            assert parse(text, name).content == text


def test_an_opener_without_a_call_is_text() -> None:
    for text, name in (
        ("Say <tool_call> to call.", "hermes"),
        ("<tool_call>{}</tool_call>", "hermes"),
        ("functools is a module", "phi4mini"),
        ("```json\n[1]\n```", "xlam"),
        ("a function call is prose", "gigachat3"),
        ("<|action_start|><|interpreter|>\nprint(1)<|action_end|>", "internlm"),
        ("<|python_tag|>print(1)", "llama3_json"),
    ):
        message = parse(text, name)
        assert message.content == text and not message.tool_calls and not message.error
