"""Selects the formats of a model: by name, by chat template, or by its own declaration.

A chat template renders earlier calls in the model's format, so the delimiters in its text are a
fingerprint. A checkpoint may also declare its format as a `response_template`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from baton.errors import SettingsError
from baton.output_parsing.reasoning_format import ReasoningReader
from baton.output_parsing.reasoning_formats import REASONING_FORMATS
from baton.output_parsing.response_template import declared_reasoning, declared_tools, literals
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tool_formats import TOOL_FORMATS

NONE = "none"
"""Name of no format: nothing is separated."""
DECLARED = ("hf", "response_template")
"""Names of the format that the checkpoint declares, regardless of its chat template."""

Row = TypeVar("Row", bound=ToolReader | ReasoningReader)

TOOL_FINGERPRINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deepseek_v4", ("<｜DSML｜tool_calls>",)),
    ("deepseek_v32", ("<｜DSML｜",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("hy_v3", ("<tool_sep>", "<arg_key>")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("openai", ("<|channel|>", "to=functions")),
    ("cohere_command3", ("<|START_ACTION|>",)),
    ("gemma4", ("<|tool_call>", '<|"|>')),
    ("functiongemma", ("<start_function_call>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("step3", ("<steptml:invoke",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("internlm", ("<|action_start|>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("gigachat3", ("<|function_call|>",)),
    ("gigachat3", ("function call<|role_sep|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("qwen_vl", ("✿FUNCTION✿",)),
    ("phi4mini", ("functools",)),
    ("olmo3", ("<function_calls>",)),
    ("qwen3_xml", ("<function=", "<parameter=")),
    ("glm45", ("<arg_key>",)),
    ("hunyuan_a13b", ("<tool_calls>", "<answer>")),
    ("jamba", ("<tool_calls>", "<|bom|>")),
    ("minimax", ("<tool_calls>",)),
    ("granite", ("<|tool_call|>",)),
    ("granite-20b-fc", ("<function_call>",)),
    ("ernie45", ("<tool_call>", "<response>")),
    ("hermes", ("<tool_call>",)),
)
"""(row, texts that its chat template contains); the first match is used."""
REASONING_FINGERPRINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gpt_oss", ("<|channel|>",)),
    ("gemma4", ("<|channel>",)),
    ("cohere_command3", ("<|START_THINKING|>",)),
    ("apertus", ("<|inner_prefix|>",)),
    ("mistral", ("[THINK]",)),
    ("seed_oss", ("<seed:think>",)),
    ("granite", ("Here is my thought process:",)),
    ("hunyuan_a13b", ("<think>", "<answer>")),
    ("ernie45", ("<think>", "<response>")),
    ("minimax_m2", ("<think>", "<minimax:tool_call>")),
    ("qwen3", ("</think>",)),
    ("qwen3", ("<think>",)),
)
"""The same for reasoning."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The formats of a model, and the reason for their choice."""

    tool_format: ToolReader | None
    reasoning_format: ReasoningReader | None
    reason: str
    """One sentence for each of the two."""


def tool_format(name: str) -> ToolReader:
    """The format of a name. Raises `SettingsError` that lists the names."""
    return _named(name, TOOL_FORMATS, "tool-call parser")


def reasoning_format(name: str) -> ReasoningReader:
    """The format of a name. Raises `SettingsError` that lists the names."""
    return _named(name, REASONING_FORMATS, "reasoning parser")


def names(rows: Iterable[ToolReader | ReasoningReader]) -> tuple[str, ...]:
    """All names of a table, aliases included."""
    return tuple(name for row in rows for name in (row.name, *row.aliases))


def _named(name: str, rows: tuple[Row, ...], kind: str) -> Row:
    table: dict[str, Row] = {alias: row for row in rows for alias in (row.name, *row.aliases)}
    if name in table:
        return table[name]
    known = tuple(table)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise SettingsError(f"Unknown {kind} '{name}'. Known: {', '.join(known)}.{hint}")


def select(
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    *,
    chat_template: str = "",
    response_template: Mapping[str, Any] | None = None,
) -> Selection:
    """Choose formats. A name takes precedence over the chat template, and that over
    `response_template`, the value of this key in the checkpoint's `tokenizer_config.json`.

    Names are those of vLLM's `--tool-call-parser` and `--reasoning-parser`, or "none"; "hf" is the
    declaration only; None or "" selects automatically. Raises `SettingsError` for an unknown name.
    """
    declared = response_template or {}
    tools, why_tools = _tools(tool_parser, chat_template, declared)
    reasoning, why_reasoning = _reasoning(reasoning_parser, chat_template, declared)
    reason = f"Tool calls: {_name(tools)}, {why_tools}. Thinking: {_name(reasoning)}, "
    return Selection(tools, reasoning, f"{reason}{why_reasoning}.")


def _name(row: ToolReader | ReasoningReader | None) -> str:
    return row.name if row is not None else "not read"


def _tools(
    name: str | None, template: str, declared: Mapping[str, Any]
) -> tuple[ToolReader | None, str]:
    if name and name not in DECLARED:
        return (None if name == NONE else tool_format(name)), "as named"
    if not name and (fingerprint := _fingerprint(TOOL_FINGERPRINTS, template)):
        return tool_format(fingerprint[0]), f"because the chat template has {fingerprint[1]}"
    if fingerprint := _fingerprint(TOOL_FINGERPRINTS, literals(declared, "tool_calls")):
        reason = f"because the checkpoint's response_template has {fingerprint[1]}"
        return tool_format(fingerprint[0]), reason
    if row := declared_tools(declared):
        return row, "as the checkpoint's response_template says"
    return None, "because neither the chat template nor a response_template says how"


def _reasoning(
    name: str | None, template: str, declared: Mapping[str, Any]
) -> tuple[ReasoningReader | None, str]:
    if name and name not in DECLARED:
        return (None if name == NONE else reasoning_format(name)), "as named"
    if not name and (fingerprint := _fingerprint(REASONING_FINGERPRINTS, template)):
        return reasoning_format(fingerprint[0]), f"because the chat template has {fingerprint[1]}"
    if row := declared_reasoning(declared):
        return row, "as the checkpoint's response_template says"
    if fingerprint := _fingerprint(REASONING_FINGERPRINTS, literals(declared, "thinking")):
        reason = f"because the checkpoint's response_template has {fingerprint[1]}"
        return reasoning_format(fingerprint[0]), reason
    return None, "because neither the chat template nor a response_template says how"


def _fingerprint(
    table: tuple[tuple[str, tuple[str, ...]], ...], text: str
) -> tuple[str, str] | None:
    """The first row whose texts are all present, and the texts in words."""
    for name, texts in table:
        if all(part in text for part in texts):
            return name, " and ".join(f"'{part}'" for part in texts)
    return None
