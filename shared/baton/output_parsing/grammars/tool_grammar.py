"""Grammar of an answer that must call a tool, in the syntax of the model's own format.

The counterpart of `tool_formats`: a row there is read, its entry here is written. Tests sample from
each grammar and parse the result with the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.output_parsing.grammars.lark import Lark, either, literal
from baton.output_parsing.grammars.syntax import (
    EscapedCall,
    Function,
    JsonObject,
    KeyedObject,
    NameThenJson,
    PythonCall,
    Syntax,
    Tags,
)
from baton.output_parsing.reasoning_format import ReasoningReader, Start
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tools import Tools
from baton.protocol import Grammar
from baton.structured_output.json_schema import SchemaError


@dataclass(frozen=True, slots=True)
class Block:
    """Calls and the text around them."""

    syntax: Syntax
    begin: tuple[str, ...] = ()
    """Alternatives."""
    between: str | None = ""
    """Between two calls; None if only one is possible."""
    end: str = ""


def _object(before: str, after: str, between: str | None = "\n") -> Block:
    return Block(JsonObject((before,), after), between=between)


def _array(*begin: str, end: str = "]") -> Block:
    return Block(JsonObject(), begin, ", ", end)


_QWEN = Tags(("<function=NAME>\n", "</function>\n"), ("<parameter=KEY>\n", "\n</parameter>\n"))
_DSML = Tags(
    ('<｜DSML｜invoke name="NAME">\n', "</｜DSML｜invoke>\n"),
    ('<｜DSML｜parameter name="KEY" string="STRING">', "</｜DSML｜parameter>\n"),
)
BLOCKS: Mapping[str, Block] = {
    "hermes": _object("<tool_call>\n", "\n</tool_call>"),
    "longcat": _object("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "ernie45": _object("<tool_call>\n", "\n</tool_call>\n"),
    "internlm": Block(
        JsonObject(
            ("<|action_start|><|plugin|>\n",), "<|action_end|>", keys=("name", "parameters")
        ),
        between=None,
    ),
    "granite-20b-fc": _object("<function_call> ", ""),
    "gigachat3": Block(
        JsonObject(("<|message_sep|>\n\nfunction call<|role_sep|>\n", "<|function_call|>")),
        between=None,
    ),
    "jamba": _array("<tool_calls>[", end="]</tool_calls>"),
    "hunyuan_a13b": _array("<tool_calls>[", end="]</tool_calls>"),
    "minimax": Block(JsonObject(), ("<tool_calls>\n",), "\n", "\n</tool_calls>"),
    "granite": _array("<|tool_call|>[", "<tool_call>["),
    "phi4mini": _array("functools["),
    "cohere_command3": Block(
        JsonObject(keys=("tool_name", "parameters"), extra='"tool_call_id": "[0-9]{1,3}", '),
        ("<|START_ACTION|>[\n    ",),
        ",\n    ",
        "\n]<|END_ACTION|>",
    ),
    "json": _array("["),
    "xlam": _array("["),
    "llama3_json": Block(JsonObject(keys=("name", "parameters")), between="; "),
    "mistral": Block(NameThenJson("[TOOL_CALLS]", "[ARGS]")),
    "deepseek_v3": Block(
        NameThenJson(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "\n```json\n",
            "\n```<｜tool▁call▁end｜>",
        ),
        ("<｜tool▁calls▁begin｜>",),
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Block(
        NameThenJson("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        ("<｜tool▁calls▁begin｜>",),
        end="<｜tool▁calls▁end｜>",
    ),
    "kimi_k2": Block(
        NameThenJson(
            "<|tool_call_begin|>functions.",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            number=":[0-9]{1,4}",
        ),
        ("<|tool_calls_section_begin|>",),
        end="<|tool_calls_section_end|>",
    ),
    "qwen_vl": Block(NameThenJson("✿FUNCTION✿: ", "\n✿ARGS✿: "), between="\n"),
    "openai": Block(
        NameThenJson(
            "<|channel|>commentary to=functions.",
            " <|constrain|>json<|message|>",
            "<|call|>",
        ),
        between=None,
    ),
    "qwen3_xml": Block(_QWEN, ("<tool_call>\n",), "</tool_call>\n<tool_call>\n", "</tool_call>"),
    "seed_oss": Block(
        Tags(("<function=NAME>\n", "</function>\n"), ("<parameter=KEY>", "</parameter>\n")),
        ("<seed:tool_call>\n",),
        "</seed:tool_call>\n<seed:tool_call>\n",
        "</seed:tool_call>",
    ),
    "deepseek_v32": Block(_DSML, ("<｜DSML｜function_calls>\n",), end="</｜DSML｜function_calls>"),
    "deepseek_v4": Block(_DSML, ("<｜DSML｜tool_calls>\n",), end="</｜DSML｜tool_calls>"),
    "minimax_m2": Block(
        Tags(
            ('<invoke name="NAME">\n', "</invoke>\n"),
            ('<parameter name="KEY">', "</parameter>\n"),
        ),
        ("<minimax:tool_call>\n",),
        end="</minimax:tool_call>",
    ),
    "step3": Block(
        Tags(
            (
                '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">',
                "</steptml:invoke><｜tool_call_end｜>",
            ),
            ('<steptml:parameter name="KEY">', "</steptml:parameter>"),
        ),
        ("<｜tool_calls_begin｜>",),
        end="<｜tool_calls_end｜>",
    ),
    "glm45": Block(
        Tags(
            ("<tool_call>NAME\n", "</tool_call>"),
            ("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
        between="\n",
    ),
    "hy_v3": Block(
        Tags(
            ("<tool_call>NAME<tool_sep>\n", "</tool_call>\n"),
            ("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
        ),
        ("<tool_calls>\n",),
        end="</tool_calls>",
    ),
    "apertus": Block(KeyedObject(), ("<|tools_prefix|>[",), ", ", "]<|tools_suffix|>"),
    "pythonic": Block(PythonCall(), ("[",), ", ", "]"),
    "llama4_pythonic": Block(PythonCall(), ("[",), ", ", "]"),
    "lfm2": Block(PythonCall(), ("<|tool_call_start|>[",), ", ", "]<|tool_call_end|>"),
    "olmo3": Block(PythonCall(), ("<function_calls>\n",), "\n", "\n</function_calls>"),
    "functiongemma": Block(EscapedCall("<start_function_call>", "<escape>", "<end_function_call>")),
    "gemma4": Block(EscapedCall("<|tool_call>", '<|"|>', "<tool_call|>")),
}
"""Row -> syntax of its calls, as in the chat templates of its models."""


def tool_grammar(
    tool_format: ToolReader,
    tools: Sequence[Mapping[str, Any]],
    choice: str = "required",
    *,
    parallel: bool = True,
    reasoning_format: ReasoningReader | None = None,
    start: Start = "content",
) -> Grammar:
    """Grammar of an answer that calls one of the tools, or several times if `parallel`.

    `choice` is "required" or the name of a function. Thinking precedes the calls if the prompt has
    opened it, and may precede them if the model opens it. Raises `SchemaError` for a schema that
    the format cannot guarantee, and for an unknown name.
    """
    block, lark = block_of(tool_format), Lark()
    calls = [lark.rule(block.syntax.call(lark, f)) for f in _functions(tools, choice)]
    call = lark.rule(either(calls))
    more = f"({literal(block.between)} {call})*" if parallel and block.between is not None else ""
    begin = either(map(literal, block.begin)) if block.begin else ""
    thinking = _thinking(lark, tool_format, reasoning_format, start)
    return Grammar(
        "tool_calls", lark.source(f"{thinking} {begin} {call} {more} {literal(block.end)}")
    )


def block_of(tool_format: ToolReader) -> Block:
    """Syntax of a format's calls. Raises `SchemaError` if its calls have no grammar."""
    block = BLOCKS.get(tool_format.name)
    if block is None:
        raise SchemaError(f"calls of the format '{tool_format.name}' have no grammar")
    return block


def described(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Converts OpenAI's tool objects."""
    return [tool.get("function", tool) for tool in tools]


def _functions(tools: Sequence[Mapping[str, Any]], choice: str) -> list[Function]:
    resolver = Tools(tools)
    functions = [
        Function(one["name"], one.get("parameters") or {}, resolver)
        for one in described(tools)
        if choice in ("required", one["name"])
    ]
    if not functions:
        raise SchemaError(f"there is no function '{choice}' among the tools")
    return functions


def _thinking(
    lark: Lark, tool_format: ToolReader, reasoning: ReasoningReader | None, start: Start
) -> str:
    """Expression of optional text before the calls."""
    if tool_format.own_reasoning is not None:
        thought = lark.until("<|end|>")
        opened = f"{literal('<|channel|>analysis<|message|>')} {thought}"
        again = literal("<|start|>assistant")
        return f"{thought} {again}" if start == "thinking" else f"({opened} {again})?"
    openers, closers = getattr(reasoning, "openers", ()), getattr(reasoning, "closers", ())
    if not openers or not closers:
        return ""
    space = lark.pattern(r"[ \n]{0,4}")
    thought = f"{lark.until(closers[-1])} {space}"
    return thought if start == "thinking" else f"({literal(openers[0])} {thought})?"
