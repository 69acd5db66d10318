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


class ByteVocabulary:
    """A vocabulary in which each byte is a token."""

    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


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


def _named(template: str, between: str = "") -> str:
    """The calls, name and arguments put into a template."""
    return between.join(
        template.replace("$NAME", name)
        .replace("$N", str(i))
        .replace("$ARGS", json.dumps(arguments))
        for i, (name, arguments) in enumerate(TWO)
    )


def _tags(calls: Calls, function: tuple[str, str], parameter: tuple[str, str]) -> list[str]:
    """Calls of which each argument is a tag; KEY is in the opening one."""
    return [
        function[0].replace("NAME", name)
        + "".join(
            parameter[0].replace("KEY", key).replace("KIND", str(isinstance(value, str)).lower())
            + (value if isinstance(value, str) else json.dumps(value))
            + parameter[1]
            for key, value in arguments.items()
        )
        + function[1]
        for name, arguments in calls
    ]


_V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$NAME\n```json\n$ARGS\n```<｜tool▁call▁end｜>"
_V31 = "<｜tool▁call▁begin｜>$NAME<｜tool▁sep｜>$ARGS<｜tool▁call▁end｜>"
_QWEN = (("<function=NAME>\n", "</function>"), ("<parameter=KEY>\n", "\n</parameter>\n"))
_COMPACT = (("<function=NAME>", "</function>"), ("<parameter=KEY>", "</parameter>"))
_INVOKE = (('<invoke name="NAME">\n', "</invoke>\n"), ('<parameter name="KEY">', "</parameter>\n"))
_DSML = (
    ('<｜DSML｜invoke name="NAME">\n', "</｜DSML｜invoke>\n"),
    ('<｜DSML｜parameter name="KEY" string="KIND">', "</｜DSML｜parameter>\n"),
)
_STEP = (
    (
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">',
        "</steptml:invoke><｜tool_call_end｜>",
    ),
    ('<steptml:parameter name="KEY">', "</steptml:parameter>"),
)
_GLM = (
    ("<tool_call>NAME\n", "</tool_call>"),
    ("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
)
_GLM_TIGHT = (
    ("<tool_call>NAME", "</tool_call>"),
    ("<arg_key>KEY</arg_key><arg_value>", "</arg_value>"),
)
_NOW: Calls = [("now", {})]
_PYTHON = [
    "get_weather(city='Paris', days=3)",
    "write_file(path='a.py', text='if a < b:\\n    print(\"x\")\\n', tags=['a', \"b\"])",
]
_LINES = [
    'get_weather(city="Paris", days=3)',
    'write_file(path="a.py", text="if a < b:\\n    print(\\"x\\")\\n", tags=["a", "b"])',
]
_GEMMA = [
    "call:get_weather{city:<escape>Paris<escape>,days:3}",
    'call:write_file{path:<escape>a.py<escape>,text:<escape>if a < b:\n    print("x")\n<escape>,'
    "tags:[<escape>a<escape>,<escape>b<escape>]}",
]
_CALL_OF_GPT = (
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
    '<|message|>{"city": "Paris", "days": 3}<|call|>'
)

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
    # ------------------------------------------------ the name outside the JSON
    Example("mistral", "Yes." + _named("[TOOL_CALLS]$NAME[ARGS]$ARGS") + "</s>", TWO, "Yes."),
    Example("mistral", _named("[TOOL_CALLS]$NAME[CALL_ID]abcdefgh$N[ARGS]$ARGS"), TWO),
    Example("mistral", _named("[TOOL_CALLS]$NAME$ARGS"), TWO),
    Example("mistral", f"[TOOL_CALLS]{_ARRAY}", TWO),
    Example(
        "deepseek_v3",
        "Yes.<｜tool▁calls▁begin｜>" + _named(_V3, "\n") + "<｜tool▁calls▁end｜>",
        TWO,
        "Yes.",
    ),
    Example("deepseek_v31", "<｜tool▁calls▁begin｜>" + _named(_V31) + "<｜tool▁calls▁end｜>", TWO),
    Example(
        "kimi_k2",
        "Yes.<|tool_calls_section_begin|>"
        + _named(
            "<|tool_call_begin|>functions.$NAME:$N<|tool_call_argument_begin|>$ARGS<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
        TWO,
        "Yes.",
    ),
    Example("qwen_vl", _named("✿FUNCTION✿: $NAME\n✿ARGS✿: $ARGS", "\n") + "\n✿RESULT✿", TWO),
    Example("qwen_vl", _named("✿FUNCTION✿:$NAME\n✿ARGS✿:$ARGS", "\n"), TWO),
    Example("openai", _CALL_OF_GPT.removeprefix("<|start|>assistant"), [TWO[0]]),
    Example(
        "openai",
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary"
        f"<|message|>Yes.<|end|>{_CALL_OF_GPT}",
        [TWO[0]],
        "Yes.",
        "So.",
    ),
    Example(
        "openai",
        "<|channel|>analysis<|message|>So.<|end|><|start|>assistant to=functions.now"
        "<|channel|>commentary json<|message|>{}",
        _NOW,
        None,
        "So.",
    ),
    # ------------------------------------------------ values without quotes
    *(
        Example(name, f"Yes.\n<tool_call>\n{block}\n</tool_call>", [call], "Yes.\n")
        for name in ("qwen3_xml", "qwen3_coder", "qwen3coder", "step3p5")
        for shape in (_QWEN, _COMPACT)
        for call, block in zip(TWO, _tags(TWO, *shape), strict=True)
    ),
    Example(
        "qwen3_xml", "\n".join(f"<tool_call>\n{x}\n</tool_call>" for x in _tags(TWO, *_QWEN)), TWO
    ),
    Example(
        "qwen3coder", "Yes. " + _tags([TWO[1]], *_QWEN)[0] + "\n</tool_call>", [TWO[1]], "Yes. "
    ),
    Example("qwen3coder", "<tool_call><function=now></function></tool_call>", _NOW),
    *(
        Example("seed_oss", f"<seed:tool_call>\n{block}\n</seed:tool_call>", [call])
        for shape in (_QWEN, _COMPACT)
        for call, block in zip(TWO, _tags(TWO, *shape), strict=True)
    ),
    Example(
        "deepseek_v32",
        "Yes.\n\n<｜DSML｜function_calls>\n"
        + "".join(_tags(TWO, *_DSML))
        + "</｜DSML｜function_calls>",
        TWO,
        "Yes.\n\n",
        tools=(),
    ),
    Example(
        "minimax_m2",
        "<minimax:tool_call>\n" + "".join(_tags(TWO, *_INVOKE)) + "</minimax:tool_call>[e~[",
        TWO,
    ),
    *(
        Example(
            "step3",
            f"<｜tool_calls_begin｜>{between}"
            + between.join(_tags(TWO, *_STEP))
            + "<｜tool_calls_end｜>",
            TWO,
        )
        for between in ("", "\n")
    ),
    *(
        Example(name, "Yes." + "\n".join(_tags(TWO, *shape)) + "<|observation|>", TWO, "Yes.")
        for name in ("glm4", "glm45", "glm47", "glm4_moe")
        for shape in (_GLM, _GLM_TIGHT)
    ),
    Example("glm45", "<tool_call>now\n</tool_call>", _NOW),
    # ------------------------------------------------ syntaxes of their own
    Example("pythonic", f"[{', '.join(_PYTHON)}]", TWO),
    Example("pythonic", "\n[now()]\n", _NOW),
    Example("llama4_pythonic", f"[{', '.join(_PYTHON)}]<|eot|>", TWO),
    Example("llama4_pythonic", f"Yes.<|python_start|>[{_PYTHON[1]}]<|python_end|>", _ONE, "Yes."),
    Example(
        "olmo3",
        "Yes.\n<function_calls>\n" + "\n".join(_LINES) + "\n</function_calls>",
        TWO,
        "Yes.\n",
    ),
    Example("olmo3", "<function_calls>" + "\n".join(_PYTHON) + "</function_calls>", TWO),
    Example(
        "functiongemma",
        "".join(f"<start_function_call>{c}<end_function_call>" for c in _GEMMA)
        + "<start_function_response>",
        TWO,
    ),
    Example("functiongemma", "<start_function_call>call:now{}<end_function_call>", _NOW),
    # ------------------------------------------------ rows of newer models
    Example(
        "cohere_command3",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        '{"city": "Paris", "days": 3}}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>',
        [TWO[0]],
    ),
    Example(
        "gemma4",
        "".join(f"<|tool_call>{c}<tool_call|>" for c in _GEMMA).replace("<escape>", '<|"|>'),
        TWO,
    ),
    Example(
        "deepseek_v4",
        "<｜DSML｜tool_calls>\n" + "".join(_tags(TWO, *_DSML)) + "</｜DSML｜tool_calls>",
        TWO,
    ),
    Example(
        "hy_v3",
        "<tool_calls>\n"
        + "\n".join(_tags(TWO, (_GLM[0][0].replace("\n", "<tool_sep>\n"), "</tool_call>"), _GLM[1]))
        + "\n</tool_calls>",
        TWO,
    ),
    Example("hy_v3", "<tool_calls><tool_call>now<tool_sep></tool_call></tool_calls>", _NOW),
    Example(
        "apertus",
        f"<|tools_prefix|>[{', '.join(json.dumps({n: a}) for n, a in TWO)}]<|tools_suffix|>",
        TWO,
    ),
    Example("lfm2", f"<|tool_call_start|>[{', '.join(_PYTHON)}]<|tool_call_end|>", TWO),
    Example("granite4", _tagged("<tool_call>\n", "\n</tool_call>"), TWO),
    Example("mimo", f"<tool_call>\n{_tags(_ONE, *_QWEN)[0]}\n</tool_call>", _ONE),
)
"""Texts that are read to the end without an error."""
