from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.output_parsing.reasoning_formats import REASONING_FORMATS
from baton.output_parsing.selection import (
    REASONING_FINGERPRINTS,
    TOOL_FINGERPRINTS,
    Selection,
    names,
    reasoning_format,
    select,
    tool_format,
)
from baton.output_parsing.tool_formats import TOOL_FORMATS
from tests.support.model_outputs import EXAMPLES

VLLM_TOOLS = (
    *("deepseek_v3", "deepseek_v31", "deepseek_v32", "cohere_command3", "ernie45", "glm45"),
    *("glm47", "granite-20b-fc", "granite", "granite4", "hermes", "hunyuan_a13b", "internlm"),
    *("jamba", "lfm2", "kimi_k2", "llama3_json", "llama4_json", "llama4_pythonic", "longcat"),
    *("mimo", "minimax_m2", "mistral", "olmo3", "openai", "phi4_mini_json", "pythonic"),
    *("qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5", "xlam"),
    *("gigachat3", "functiongemma", "gemma4", "apertus", "deepseek_v4", "hy_v3"),
)
VLLM_REASONING = (
    *("deepseek_r1", "deepseek_v3", "cohere_command3", "ernie45", "gemma4", "glm45", "glm47"),
    *("openai_gptoss", "granite", "holo2", "hunyuan_a13b", "kimi_k2", "mimo", "minimax_m2"),
    *("minimax_m2_append_think", "mistral", "nemotron_v3", "olmo3", "qwen3", "seed_oss"),
    *("step3", "step3p5", "identity", "gpt_oss", "gpt-oss", "gptoss"),
)


def chosen(found: Selection) -> tuple[str | None, str | None]:
    tools, reasoning = found.tool_format, found.reasoning_format
    return (tools.name if tools else None, reasoning.name if reasoning else None)


def test_names_are_those_of_vllm() -> None:
    assert set(VLLM_TOOLS) <= set(names(TOOL_FORMATS))
    assert set(VLLM_REASONING) <= set(names(REASONING_FORMATS))
    for rows in (TOOL_FORMATS, REASONING_FORMATS):
        assert len(set(names(rows))) == len(names(rows))
    assert tool_format("qwen3_coder").name == "qwen3_xml"
    assert reasoning_format("openai_gptoss").name == "gpt_oss"


def test_an_unknown_name_is_refused_with_the_names() -> None:
    with pytest.raises(SettingsError, match=r"'hermez'. Known: hermes, .*Did you mean 'hermes'"):
        select("hermez")
    with pytest.raises(SettingsError, match=r"Unknown reasoning parser 'qwen'. Known: deepseek_r1"):
        select(None, "qwen")


def test_a_name_wins_over_the_template() -> None:
    template = "{{ '<tool_call>' }} {{ '</think>' }}"
    assert chosen(select(chat_template=template)) == ("hermes", "qwen3")
    assert chosen(select("mistral", "granite", chat_template=template)) == ("mistral", "granite")
    assert chosen(select("none", "none", chat_template=template)) == (None, None)
    assert chosen(select("", "", chat_template=template)) == ("hermes", "qwen3")


def test_a_template_wins_over_a_declaration() -> None:
    declared = {"fields": {"tool_calls": {"open": "[TOOL_CALLS]"}}}
    assert chosen(select(response_template=declared))[0] == "mistral"
    found = select(chat_template="<tool_call>", response_template=declared)
    assert chosen(found)[0] == "hermes"
    for name in ("hf", "response_template"):
        found = select(name, name, chat_template="<tool_call></think>", response_template=declared)
        assert chosen(found) == ("mistral", None)


def test_the_reason_is_a_sentence() -> None:
    found = select("hermes", chat_template="[THINK]")
    assert found.reason == (
        "Tool calls: hermes, as named. Thinking: mistral, because the chat template has '[THINK]'."
    )
    assert "not read, because neither" in select().reason


def test_the_texts_of_a_format_choose_it() -> None:
    """A chat template renders past calls as the model writes them."""
    ambiguous = {
        *("json", "llama3_json", "llama", "llama4_json", "xlam", "pythonic", "llama4_pythonic"),
        *("ernie45", "hunyuan_a13b", "hunyuan", "jamba", "granite", "mistral", "openai", "gemma4"),
    }
    for example in EXAMPLES:
        if example.parser not in ambiguous and all(arguments for _, arguments in example.calls):
            found, _ = chosen(select(chat_template=example.text))
            assert found == tool_format(example.parser).name, example.text


def test_templates_of_families() -> None:
    for template, expected in (
        ("'<|python_tag|>' + ... '\"parameters\": '", ("llama3_json", None)),
        ("<|python_start|> <|header_start|>", ("llama4_pythonic", None)),
        ("[TOOL_CALLS] [ARGS] [THINK]", ("mistral", "mistral")),
        ("<think> <answer> <tool_calls>", ("hunyuan_a13b", "hunyuan_a13b")),
        ("<|bom|> <tool_calls>", ("jamba", None)),
        ("<think> <response> <tool_call>", ("ernie45", "ernie45")),
        ("<|tool_call|> Here is my thought process:", ("granite", "granite")),
        ("<|channel|>analysis to=functions.", ("openai", "gpt_oss")),
        ('<|channel>thought <|tool_call>call: <|"|>', ("gemma4", "gemma4")),
        ("<｜tool▁calls▁begin｜> ```json <think>", ("deepseek_v3", "qwen3")),
        ("<minimax:tool_call> <think>", ("minimax_m2", "minimax_m2")),
        ("{{ messages }}", (None, None)),
    ):
        assert chosen(select(chat_template=template)) == expected, template


def test_every_fingerprint_names_a_row() -> None:
    for name, texts in TOOL_FINGERPRINTS:
        assert tool_format(name) and texts
    for name, texts in REASONING_FINGERPRINTS:
        assert reasoning_format(name) and texts


def test_the_page_lists_every_name() -> None:
    page = (Path(__file__).parents[3] / "docs/api/tool-calling.md").read_text()
    for row in (*TOOL_FORMATS, *REASONING_FORMATS):
        assert f"| {row.name} | {', '.join(row.aliases)} |" in page
