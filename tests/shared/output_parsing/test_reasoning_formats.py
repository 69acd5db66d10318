from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from baton.output_parsing.message import Message
from baton.output_parsing.reasoning_format import ReasoningFormat
from baton.output_parsing.reasoning_formats import REASONING_FORMATS
from tests.support.model_outputs import parse, reasoning_format

CALL = '<tool_calls>[{"name": "f", "arguments": {"x": "</think>"}}]</tool_calls>'
Case = tuple[bool | None, str, str | None, str | None]
"""(thinking, text, reasoning, content)"""

THINK_TAGS: Sequence[Case] = (
    (True, "so\nit is</think>\n\nyes", "so\nit is", "yes"),
    (True, "<think>\nso</think>yes", "so", "yes"),
    (True, "<think>so", "so", None),
    (True, "so", "so", None),
    (True, "\n\n</think>\n\nyes", None, "yes"),
    (True, "<think>so</think>yes <think>no</think>", "so", "yes <think>no</think>"),
    (False, "yes", None, "yes"),
    (False, "<think>\n\n</think>\n\nyes", None, "yes"),
)
CASES: dict[str, tuple[str, Sequence[Case]]] = {
    "F17.01": ("deepseek_r1", (*THINK_TAGS, (None, "so</think>yes", "so", "yes"))),
    "F17.02": ("deepseek_v3", (*THINK_TAGS, (None, "yes", None, "yes"))),
    "F17.03": ("qwen3", (*THINK_TAGS, (None, "so</think>yes", "so", "yes"))),
    "F17.04": (
        "mistral",
        (
            (None, "[THINK]so[/THINK]yes", "so", "yes"),
            (None, "[THINK]so", "so", None),
            (None, "yes", None, "yes"),
        ),
    ),
    "F17.05": ("step3", THINK_TAGS),
    "F17.06": ("step3p5", (*THINK_TAGS, (None, "so\n</think>\nyes", "so", "yes"))),
    "F17.07": (
        "ernie45",
        (
            *THINK_TAGS,
            (None, "so\n</think>\n\n<response>\nyes\n</response>\n", "so", "yes"),
            (None, "so\n</think>\n\n<response>\nyes", "so", "yes"),
        ),
    ),
    "F17.08": (
        "granite",
        (
            (None, "Here is my thought process: so Here is my response: yes", "so ", "yes"),
            (None, "Here's my thought process: so Here's my response: yes", "so ", "yes"),
            (None, "Here is my thought process: so", "so", None),
            (None, "Here is my bread.", None, "Here is my bread."),
        ),
    ),
    "F17.09": ("olmo3", THINK_TAGS),
    "F17.10": (
        "seed_oss",
        (
            (None, "<seed:think>so</seed:think>yes", "so", "yes"),
            (None, "so</seed:think>yes", "so", "yes"),
            (None, "<seed:think>so", "so", None),
            (False, "yes", None, "yes"),
        ),
    ),
    "F17.11": ("minimax_m2", THINK_TAGS),
    "F17.12": (
        "minimax_m2_append_think",
        (
            (None, "so\n</think>\n\nyes", None, "<think>so\n</think>\n\nyes"),
            (None, "so", None, "<think>so"),
        ),
    ),
    "F17.13": (
        "hunyuan_a13b",
        (
            (None, "<think>\nso\n</think>\n<answer>\nyes\n</answer>", "so", "yes"),
            (None, "<think>so</think><answer>yes", "so", "yes"),
            (None, "<think>\n\n</think>\n<answer>\nyes\n</answer>", None, "yes"),
            (None, "yes", None, "yes"),
            (None, "<think>\nso", "so", None),
        ),
    ),
    "F17.14": ("identity", ((None, "<think>so</think>yes", None, "<think>so</think>yes"),)),
    "F17.15": (
        "gpt_oss",
        (
            (None, "yes", None, "yes"),
            (
                None,
                "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
                "<|channel|>final<|message|>yes<|return|>",
                "so",
                "yes",
            ),
            (None, "<|channel|>analysis<|message|>so", "so", None),
            (None, "<|channel|>final<|message|>yes", None, "yes"),
            (
                None,
                "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
                "<|channel|>analysis<|message|>it is<|end|>",
                "so\nit is",
                None,
            ),
        ),
    ),
}


def split(name: str, thinking: bool | None, text: str, cuts: Sequence[int] = ()) -> Message:
    start = reasoning_format(name).default_start(thinking)
    return parse(text, "hunyuan_a13b", name, start=start, cuts=cuts)


def marked() -> list[Any]:
    return [
        pytest.param(name, cases, marks=pytest.mark.row(row), id=name)
        for row, (name, cases) in CASES.items()
    ]


@pytest.mark.parametrize(("name", "cases"), marked())
def test_a_format(name: str, cases: Sequence[Case]) -> None:
    """Split at every character; missing openers and closers; calls behind the thinking."""
    for thinking, text, reasoning, content in cases:
        message = split(name, thinking, text)
        assert (message.reasoning, message.content) == (reasoning, content), text
        assert split(name, thinking, text, range(len(text))) == message
        for cut in range(len(text)):
            assert split(name, thinking, text, [cut]) == message


def test_calls_stand_behind_the_thinking() -> None:
    for row in REASONING_FORMATS:
        if not isinstance(row, ReasoningFormat) or not row.openers:
            continue
        thinking = f"{row.openers[0]}so{CALL if row.closers[-1] != '</think>' else ''}"
        message = split(row.name, True, f"{thinking}{row.closers[-1]}{CALL}")
        assert [call.name for call in message.tool_calls] == ["f"]
        assert "so" in (message.reasoning or message.content or "")


def test_formats_of_newer_models() -> None:
    cohere = (
        "<|START_THINKING|>so<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>",
        "<|START_THINKING|>so<|END_THINKING|>yes",
    )
    for name, text in (
        *(("cohere_command3", text) for text in cohere),
        ("gemma4", "<|channel>thought\nso<channel|>yes"),
        ("apertus", "<|inner_prefix|>so<|inner_suffix|>yes"),
        ("deepseek_v4", "<think>so</think>yes"),
        *((name, "so</think>yes") for name in ("glm45", "kimi_k2", "mimo", "nemotron_v3", "holo2")),
    ):
        message = split(name, None, text)
        assert (message.reasoning, message.content) == ("so", "yes"), name


def test_calls_stand_inside_an_answer_of_hunyuan() -> None:
    for text in (f"<answer>{CALL}</answer>", f"<answer>\n{CALL}\n</answer>"):
        message = split("hunyuan_a13b", None, f"<think>\nso\n</think>\n{text}")
        assert message.reasoning == "so" and message.content is None
        assert len(message.tool_calls) == 1


def test_a_response_of_ernie_has_no_calls() -> None:
    message = split("ernie45", None, f"so\n</think>\n\n<response>\n{CALL}\n</response>\n")
    assert message.content == CALL and not message.tool_calls
    message = split("ernie45", None, f"so\n</think>\n\n<response>\na\n</response>\n\n{CALL}")
    assert message.content == "a" and message.tool_calls
