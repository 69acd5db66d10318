"""Grammar of an answer that may call tools: its calls are always valid.

    free text without an opener -> opener -> a block of valid calls -> free text ...

If calls of a format may begin the text without an opener, blocks are allowed there too. If the
client constrains the text, an answer is either one block of calls or a text of that grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baton.output_parsing.grammars.lark import Lark, either, excluding, literal
from baton.output_parsing.grammars.syntax import Function, JsonObject
from baton.output_parsing.grammars.tool_grammar import Block, block_of, described
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tools import Tools
from baton.protocol import Grammar
from baton.structured_output.json_schema import SchemaError

_OPENERS: Mapping[str, tuple[str, ...]] = {
    # Each message of Harmony has a header; a call is one addressed to a function.
    "openai": (" to=functions.",),
    # An English word, or a module of Python.
    "phi4mini": ("functools[",),
    # A fence is also Markdown, and ends of thinking may precede any text.
    "xlam": ("[TOOL_CALLS]", "<tool_call>"),
}
"""Row -> openers of calls only, if the row's own openers also begin other text."""
_SPACE = r"[ \n\r\t]*"


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of calls: its literal beginning, and the rest."""

    head: str
    rest: str

    @property
    def expression(self) -> str:
        return f"{literal(self.head)} {self.rest}"

    def behind(self, opener: str) -> str | None:
        """The rest after the opener; None if the block does not begin with it."""
        if opener not in self.head:
            return None
        return f"{literal(self.head[self.head.index(opener) + len(opener) :])} {self.rest}"


def auto_grammar(
    tool_format: ToolReader,
    tools: Sequence[Mapping[str, Any]],
    *,
    parallel: bool = True,
    otherwise: str = "",
) -> Grammar:
    """Grammar of an answer that may call some of the tools.

    Args:
        otherwise: an expression of llguidance's Lark for answers without calls; "" for any text,
            also before, between and after calls.

    Raises `SchemaError` if the schema of a tool with `strict` cannot be guaranteed in this format.
    The schemas of other tools are followed as far as the format can.
    """
    lark = Lark()
    blocks = list(_blocks(lark, tool_format, tools, parallel))
    naked = getattr(tool_format, "naked", "")
    openers = _OPENERS.get(tool_format.name, tool_format.openers)
    if otherwise:
        called = either(block.expression for block in blocks)
        return Grammar("tool_calls", lark.source(f"{called} | {lark.rule(otherwise)}"))
    return Grammar("tool_calls", lark.source(_free(lark, blocks, openers, naked, parallel)))


def _free(
    lark: Lark, blocks: list[_Block], openers: Sequence[str], naked: str, parallel: bool
) -> str:
    """Text with blocks of calls in it."""
    least = [one for one in openers if not any(o in one for o in openers if o != one)]
    segments = [_segment(lark, blocks, opener, least, "") for opener in least]
    text = lark.terminal(excluding(least)) if least else lark.pattern("(?s:.*)")
    more = f"({either(segments)}){'*' if parallel else '?'}" if segments else ""
    if not naked:
        return f"{more} {text}"
    # Text that begins with one of the characters is a call.
    outside = rf"{_SPACE}[{_escaped(naked)}](?s:.*)"
    first = lark.terminal(excluding(least, outside))
    openers = [_segment(lark, blocks, opener, least, outside) for opener in least]
    called = f"{lark.pattern(_SPACE)} {either(block.expression for block in blocks)}"
    plain = f"{either(openers)} {more} {text}" if parallel and openers else ""
    once = f"{either(openers)} {text}" if openers and not parallel else ""
    behind = f"{called} {more if parallel else ''} {text}"
    return " | ".join(filter(None, (first, plain, once, behind)))


def _segment(
    lark: Lark, blocks: list[_Block], opener: str, openers: Sequence[str], outside: str
) -> str:
    """Text up to an opener, and the block that it opens."""
    behind = [rest for block in blocks if (rest := block.behind(opener)) is not None]
    rests = behind or [block.expression for block in blocks]
    others = [one for one in openers if one != opener]
    return lark.rule(f"{lark.until(opener, others, outside)} {either(rests)}")


def _blocks(
    lark: Lark, tool_format: ToolReader, tools: Sequence[Mapping[str, Any]], parallel: bool
) -> Iterable[_Block]:
    block = block_of(tool_format)
    for one in _variants(block):
        calls = [_call(lark, one, tool, Tools(tools)) for tool in described(tools)]
        call = lark.rule(either(calls))
        repeat = parallel and one.between is not None
        more = f"({literal(one.between or '')} {call})*" if repeat else ""
        behind = f"{more} {literal(one.end)}"
        if one.begin:
            yield _Block(one.begin[0], f"{call} {behind}")
            continue
        for text, rest in map(_split, calls):
            yield _Block(text, f"{rest} {behind}")


def _variants(block: Block) -> Iterable[Block]:
    """The block with each of its possible beginnings."""
    if block.begin:
        return [replace(block, begin=(one,)) for one in block.begin]
    syntax = block.syntax
    if isinstance(syntax, JsonObject) and syntax.before:
        return [replace(block, syntax=replace(syntax, before=(one,))) for one in syntax.before]
    return [block]


def _call(lark: Lark, block: Block, tool: Mapping[str, Any], known: Tools) -> str:
    parameters = tool.get("parameters") or {}
    try:
        return block.syntax.call(lark, Function(tool["name"], parameters, known))
    except SchemaError:
        if tool.get("strict"):
            raise
        return block.syntax.call(lark, Function(tool["name"], _loose(parameters), known))


def _loose(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments restricted by name only."""
    properties = parameters.get("properties")
    names = properties if isinstance(properties, Mapping) else ()
    return {"properties": {name: {} for name in names}}


def _split(expression: str) -> tuple[str, str]:
    """The literal at the beginning of an expression, and the rest of it."""
    expression = expression.lstrip("( ") if expression.startswith('("') else expression.lstrip()
    text, end = json.JSONDecoder().raw_decode(expression)
    return text, expression[end:].removeprefix(")")


def _escaped(characters: str) -> str:
    return "".join(f"\\x{{{ord(c):x}}}" for c in characters)
