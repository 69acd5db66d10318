"""What models write in each format of tool calls and of reasoning, and what it means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from baton.output_parsing.message import Message
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.reasoning_formats import REASONING_FORMATS
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tool_formats import TOOL_FORMATS


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool in OpenAI's form; a property is a JSON schema, or the name of a type."""
    schemas = {k: {"type": v} if isinstance(v, str) else v for k, v in properties.items()}
    parameters = {"type": "object", "properties": schemas}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (
    function("get_weather", city="string", days="integer", metric="boolean"),
    function("write_file", path="string", text="string", tags="array", options="object"),
    function("now"),
)
WEATHER = {"city": "Paris", "days": 3}
FILE = {"path": "a.py", "text": 'if a < b:\n    print("x")\n', "tags": ["a", "b"]}
TWO = [("get_weather", WEATHER), ("write_file", FILE)]
"""The calls that most examples make."""

Calls = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Example:
    """A text of a format."""

    parser: str
    text: str
    calls: Calls
    content: str | None = None
    reasoning: str | None = None
    tools: Sequence[dict[str, Any]] = TOOLS


def tool_format(name: str) -> ToolReader:
    """A row by name or alias."""
    return next(row for row in TOOL_FORMATS if name in (row.name, *row.aliases))


def reasoning_format(name: str) -> ReasoningReader:
    """A row by name or alias."""
    return next(row for row in REASONING_FORMATS if name in (row.name, *row.aliases))


def pieces_of(text: str, cuts: Iterable[int]) -> list[str]:
    """The text, cut at the offsets."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    return [text[a:b] for a, b in pairwise(places)]


def read(parser: OutputParser, parts: Iterable[str]) -> Message:
    """Feed a text in parts and put the result together."""
    message = Message()
    for part in parts:
        message.add(parser.feed(part))
    message.add(parser.finish())
    return message


def parse(
    text: str,
    tool: str | None = None,
    reasoning: str | None = None,
    *,
    cuts: Iterable[int] = (),
    start: Start = "content",
    tools: Sequence[dict[str, Any]] | None = TOOLS,
) -> Message:
    """Read a text by the names of formats."""
    parser = OutputParser(
        tool_format(tool) if tool else None,
        reasoning_format(reasoning) if reasoning else None,
        start=start,
        tools=tools,
    )
    return read(parser, pieces_of(text, cuts))


def calls_of(message: Message) -> list[tuple[str, Any]]:
    """Names and arguments of a message's calls."""
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def _json(calls: Calls, key: str = "arguments", indent: int | None = None) -> list[str]:
    return [json.dumps({"name": n, key: a}, ensure_ascii=False, indent=indent) for n, a in calls]


def _tagged(opener: str, closer: str, between: str = "\n", key: str = "arguments") -> str:
    return between.join(f"{opener}{call}{closer}" for call in _json(TWO, key))


_ARRAY = "[" + ", ".join(_json(TWO)) + "]"
_ONE = [TWO[1]]

EXAMPLES = (
    Example("hermes", _tagged("<tool_call>\n", "\n</tool_call>"), TWO),
    Example("hermes", "Sure.\n" + _tagged("<tool_call>\n", "\n</tool_call>"), TWO, "Sure.\n"),
    Example("longcat", _tagged("<longcat_tool_call>\n", "\n</longcat_tool_call>"), TWO),
    Example("ernie45", _tagged("<tool_call>\n", "\n</tool_call>\n", "\n"), TWO),
    Example(
        "internlm",
        "Yes.<|action_start|><|plugin|>\n" + _json(_ONE, "parameters")[0] + "<|action_end|>\n",
        _ONE,
        "Yes.",
    ),
    Example("internlm2", "<|action_start|><|plugin|>\n" + _json(_ONE)[0] + "<|action_end|>", _ONE),
    Example("granite-20b-fc", _tagged("<function_call> ", ""), TWO),
    Example("granite-20b-fc", _tagged("<function_call> ", "", " "), TWO),
    Example(
        "gigachat3",
        "Yes.<|message_sep|>\n\nfunction call<|role_sep|>\n" + _json(_ONE)[0],
        _ONE,
        "Yes.",
    ),
    Example("gigachat3", "Yes.<|function_call|>" + _json(_ONE)[0] + "</s>", _ONE, "Yes."),
    Example("jamba", f"Yes.<tool_calls>{_ARRAY}</tool_calls>", TWO, "Yes."),
    Example(
        "jamba",
        "<tool_calls>[\n    " + ",\n    ".join(_json(TWO)) + "\n]</tool_calls>",
        TWO,
    ),
    Example("hunyuan_a13b", f"<tool_calls>{_ARRAY}</tool_calls>", TWO),
    Example("hunyuan", f"<tool_calls>{_ARRAY}</tool_calls>", TWO),
    Example("minimax", "<tool_calls>\n" + "\n".join(_json(TWO)) + "\n</tool_calls>", TWO),
    Example("granite", f"<|tool_call|>{_ARRAY}", TWO),
    Example("granite", f"<tool_call> {_ARRAY}", TWO),
    Example("phi4mini", f"functools{_ARRAY}", TWO),
    Example("json", _ARRAY, TWO),
    Example("json", "\n" + _json(_ONE, indent=2)[0] + "\n", _ONE),
    Example("llama3_json", "; ".join(_json(TWO, "parameters")), TWO),
    Example("llama", _json(_ONE, "parameters")[0] + "<|eom_id|>", _ONE),
    Example("llama4_json", "Yes.<|python_tag|>" + ";".join(_json(TWO)), TWO, "Yes."),
    Example("xlam", _ARRAY, TWO),
    Example("xlam", f"Yes.\n```json\n{_ARRAY}\n```", TWO, "Yes.\n"),
    Example("xlam", f"[TOOL_CALLS]{_ARRAY}", TWO),
    Example("xlam", f"<tool_call>{_ARRAY}</tool_call>", TWO),
    Example("xlam", f"I think.</think>{_ARRAY}", TWO, "I think."),
)
"""Texts that are read to the end without an error."""
