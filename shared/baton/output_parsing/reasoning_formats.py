"""The table of reasoning formats."""

from __future__ import annotations

from baton.output_parsing.harmony import HarmonyReasoning
from baton.output_parsing.reasoning_format import Answer, ReasoningFormat, ReasoningReader

_OPEN, _CLOSE = ("<think>",), ("</think>",)

REASONING_FORMATS: tuple[ReasoningReader, ...] = (
    ReasoningFormat("deepseek_r1", _OPEN, _CLOSE, aliases=("deepseek-r1", "holo2")),
    ReasoningFormat("deepseek_v3", _OPEN, _CLOSE, opened_by_template="on request"),
    ReasoningFormat(
        "qwen3",
        _OPEN,
        _CLOSE,
        aliases=("glm45", "glm47", "kimi_k2", "mimo", "nemotron_v3", "deepseek_v4"),
        opened_by_template="perhaps",
    ),
    ReasoningFormat("mistral", ("[THINK]",), ("[/THINK]",), opened_by_template="no"),
    ReasoningFormat("step3", _OPEN, _CLOSE),
    ReasoningFormat("step3p5", _OPEN, ("\n</think>", "</think>")),
    ReasoningFormat(
        "ernie45",
        _OPEN,
        ("\n</think>", "</think>"),
        answer=Answer(("<response>\n", "<response>"), ("\n</response>", "</response>"), False),
    ),
    ReasoningFormat(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        opened_by_template="no",
    ),
    ReasoningFormat("olmo3", _OPEN, _CLOSE, opened_by_template="perhaps"),
    ReasoningFormat(
        "seed_oss", ("<seed:think>",), ("</seed:think>",), opened_by_template="perhaps"
    ),
    ReasoningFormat("minimax_m2", _OPEN, _CLOSE),
    ReasoningFormat("minimax_m2_append_think", _OPEN, _CLOSE, in_content=True),
    ReasoningFormat(
        "hunyuan_a13b",
        _OPEN,
        ("\n</think>", "</think>"),
        opened_by_template="no",
        answer=Answer(("<answer>\n", "<answer>"), ("\n</answer>", "</answer>"), True),
    ),
    ReasoningFormat(
        "cohere_command3",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        opened_by_template="no",
        answer=Answer(("<|START_RESPONSE|>",), ("<|END_RESPONSE|>",), holds_calls=False),
    ),
    ReasoningFormat(
        "gemma4",
        ("<|channel>thought\n", "<|channel>thought"),
        ("<channel|>",),
        opened_by_template="no",
    ),
    ReasoningFormat(
        "apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",), opened_by_template="no"
    ),
    ReasoningFormat("identity", (), (), opened_by_template="no"),
    HarmonyReasoning(),
)
"""One row per format; equivalent names of vLLM are aliases."""
