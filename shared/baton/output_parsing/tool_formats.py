"""The table of tool-call formats."""

from __future__ import annotations

from baton.output_parsing.bodies.escaped_values import EscapedValues
from baton.output_parsing.bodies.glm import GlmCalls
from baton.output_parsing.bodies.json_calls import JsonCalls
from baton.output_parsing.bodies.keyed_json import KeyedJson
from baton.output_parsing.bodies.mistral import MistralCalls
from baton.output_parsing.bodies.named_json import NamedJson
from baton.output_parsing.bodies.pythonic import PythonicCalls
from baton.output_parsing.bodies.tagged_arguments import TaggedArguments
from baton.output_parsing.calls import mistral_id
from baton.output_parsing.harmony import HarmonyTools
from baton.output_parsing.tool_format import ToolFormat, ToolReader

_QWEN_FUNCTION = ("<function=", ">", "</function>")
_QWEN_PARAMETER = ("<parameter=", ">", "</parameter>")
_DSML_INVOKE = ('<｜DSML｜invoke name="', '"', "</｜DSML｜invoke>")
_DSML_PARAMETER = ('<｜DSML｜parameter name="', '"', "</｜DSML｜parameter>")

TOOL_FORMATS: tuple[ToolReader, ...] = (
    # ------------------------------------------------ one JSON object per tag
    ToolFormat(
        "hermes", ("<tool_call>",), JsonCalls(("</tool_call>",)), aliases=("qwen3_json", "granite4")
    ),
    ToolFormat("longcat", ("<longcat_tool_call>",), JsonCalls(("</longcat_tool_call>",))),
    ToolFormat("ernie45", ("<tool_call>",), JsonCalls(("</tool_call>",))),
    ToolFormat(
        "internlm",
        ("<|action_start|><|plugin|>",),
        JsonCalls(("<|action_end|>",)),
        aliases=("internlm2",),
    ),
    ToolFormat("granite-20b-fc", ("<function_call>",), JsonCalls()),
    ToolFormat(
        "gigachat3",
        (
            "<|message_sep|>\n\nfunction call<|role_sep|>",
            "function call<|role_sep|>",
            "<|function_call|>",
        ),
        JsonCalls(("<|message_sep|>\n\n",)),
    ),
    # ------------------------------------------------ one JSON array
    ToolFormat("jamba", ("<tool_calls>",), JsonCalls(("</tool_calls>",))),
    ToolFormat(
        "hunyuan_a13b", ("<tool_calls>",), JsonCalls(("</tool_calls>",)), aliases=("hunyuan",)
    ),
    ToolFormat("minimax", ("<tool_calls>",), JsonCalls(("</tool_calls>",))),
    ToolFormat("granite", ("<|tool_call|>", "<tool_call>"), JsonCalls(("</tool_call>",))),
    ToolFormat("phi4mini", ("functools",), JsonCalls(), aliases=("phi4_mini_json",)),
    ToolFormat("cohere_command3", ("<|START_ACTION|>",), JsonCalls(("<|END_ACTION|>",))),
    # ------------------------------------------------ JSON without a tag
    ToolFormat("json", (), JsonCalls(named_by_tools=True), naked="{["),
    ToolFormat(
        "llama3_json",
        ("<|python_tag|>",),
        JsonCalls(named_by_tools=True),
        aliases=("llama", "llama4_json"),
        naked="{",
    ),
    ToolFormat(
        "xlam",
        ("```json", "```", "[TOOL_CALLS]", "<tool_call>", "</think>"),
        JsonCalls(("</tool_call>", "```"), named_by_tools=True),
        naked="[{",
    ),
    # ------------------------------------------------ the name outside the JSON
    ToolFormat("mistral", ("[TOOL_CALLS]",), MistralCalls(), make_id=mistral_id),
    ToolFormat(
        "deepseek_v3",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        NamedJson(
            call_openers=("<｜tool▁call▁begin｜>",),
            before_name=("function<｜tool▁sep｜>",),
            separators=("```json", "```"),
            closers=("<｜tool▁call▁end｜>", "```"),
            section_closers=("<｜tool▁calls▁end｜>",),
        ),
    ),
    ToolFormat(
        "deepseek_v31",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        NamedJson(
            call_openers=("<｜tool▁call▁begin｜>",),
            separators=("<｜tool▁sep｜>",),
            closers=("<｜tool▁call▁end｜>",),
            section_closers=("<｜tool▁calls▁end｜>",),
        ),
    ),
    ToolFormat(
        "kimi_k2",
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        NamedJson(
            call_openers=("<|tool_call_begin|>",),
            separators=("<|tool_call_argument_begin|>",),
            closers=("<|tool_call_end|>",),
            section_closers=("<|tool_calls_section_end|>",),
            named_in_id=r"(?:functions\.)?(?P<name>[^:]+)(?::\d+)?",
        ),
    ),
    ToolFormat(
        "qwen_vl",
        ("✿FUNCTION✿",),
        NamedJson(before_name=(":",), separators=("✿ARGS✿",), before_json=(":",)),
        swallowed=("✿RETURN✿: ", "✿RETURN✿:", "✿RETURN✿", "✿RESULT✿"),
    ),
    HarmonyTools(),
    # ------------------------------------------------ values without quotes
    ToolFormat(
        "qwen3_xml",
        ("<tool_call>", "<function="),
        TaggedArguments(_QWEN_FUNCTION, _QWEN_PARAMETER, ("</tool_call>",), newlines="first"),
        aliases=("qwen3_coder", "qwen3coder", "step3p5", "mimo"),
    ),
    ToolFormat(
        "seed_oss",
        ("<seed:tool_call>",),
        TaggedArguments(_QWEN_FUNCTION, _QWEN_PARAMETER, ("</seed:tool_call>",), newlines="pair"),
    ),
    ToolFormat(
        "deepseek_v32",
        ("<｜DSML｜function_calls>",),
        TaggedArguments(_DSML_INVOKE, _DSML_PARAMETER, ("</｜DSML｜function_calls>",)),
    ),
    ToolFormat(
        "deepseek_v4",
        ("<｜DSML｜tool_calls>",),
        TaggedArguments(_DSML_INVOKE, _DSML_PARAMETER, ("</｜DSML｜tool_calls>",)),
    ),
    ToolFormat(
        "minimax_m2",
        ("<minimax:tool_call>",),
        TaggedArguments(
            ('<invoke name="', '"', "</invoke>"),
            ('<parameter name="', '"', "</parameter>"),
            ("</minimax:tool_call>",),
        ),
    ),
    ToolFormat(
        "step3",
        ("<｜tool_calls_begin｜>",),
        TaggedArguments(
            ('<steptml:invoke name="', '"', "</steptml:invoke>"),
            ('<steptml:parameter name="', '"', "</steptml:parameter>"),
            ("<｜tool_calls_end｜>",),
            skipped=("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
        ),
    ),
    ToolFormat("glm45", ("<tool_call>",), GlmCalls(), aliases=("glm4", "glm4_moe", "glm47")),
    ToolFormat("hy_v3", ("<tool_calls>", "<tool_call>"), GlmCalls(("</tool_calls>",))),
    # ------------------------------------------------ syntaxes of their own
    ToolFormat("apertus", ("<|tools_prefix|>",), KeyedJson(("<|tools_suffix|>",))),
    ToolFormat("pythonic", (), PythonicCalls(), naked="["),
    ToolFormat(
        "llama4_pythonic",
        ("<|python_start|>",),
        PythonicCalls(("<|python_end|>",)),
        naked="[",
    ),
    ToolFormat(
        "olmo3", ("<function_calls>",), PythonicCalls(("</function_calls>",), brackets=False)
    ),
    ToolFormat(
        "functiongemma",
        ("<start_function_call>",),
        EscapedValues("<escape>", ("<end_function_call>",)),
    ),
    ToolFormat("gemma4", ("<|tool_call>",), EscapedValues('<|"|>', ("<tool_call|>",))),
    ToolFormat("lfm2", ("<|tool_call_start|>",), PythonicCalls(("<|tool_call_end|>",))),
)
"""One row per format; equivalent names of vLLM are aliases."""
