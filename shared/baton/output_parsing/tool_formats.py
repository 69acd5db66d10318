"""The table of tool-call formats."""

from __future__ import annotations

from baton.output_parsing.bodies.json_calls import JsonCalls
from baton.output_parsing.tool_format import ToolFormat

TOOL_FORMATS = (
    # ------------------------------------------------ one JSON object per tag
    ToolFormat("hermes", ("<tool_call>",), JsonCalls(("</tool_call>",)), aliases=("qwen3_json",)),
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
            "<|message_sep|>\n\nfunction call<|role_sep|>\n",
            "function call<|role_sep|>\n",
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
)
"""One row per format; a name of vLLM's that means the same is an alias."""
