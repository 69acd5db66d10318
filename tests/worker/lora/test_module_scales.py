"""Ranks and scales of modules, by patterns as peft matches them."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.lora import module_scales as made
from baton_worker.lora.module_scales import module_scales
from baton_worker.lora.peft_config import PeftConfig

pytestmark = pytest.mark.row("F11.03")
Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj"


def of(**fields: Any) -> dict[str, tuple[int, float]]:
    """By module, its rank and scale."""
    found = module_scales(PeftConfig(8, 16.0, **fields), [Q, UP, Q])
    assert found.ranks.keys() == found.scales.keys() == {Q, UP}
    return {name: (found.ranks[name], found.scales[name]) for name in (Q, UP)}


def test_scales_follow_rank_alpha_and_their_patterns() -> None:
    assert of() == {Q: (8, 2.0), UP: (8, 2.0)}
    assert of(rslora=True)[Q] == (8, 16 / math.sqrt(8))
    alphas = {"up_proj": 64.0, "proj": 1.0}
    patterns = {"self_attn.q_proj": 4, r".*\.1\d\..*": 32}
    expected = {Q: (4, 4.0), UP: (32, 2.0)}
    assert of(rank_pattern=patterns, alpha_pattern=alphas) == expected
    # Plain names are matched without a child.
    assert of(rank_pattern={"q_proj": 4, "layers.11.mlp.up_proj": 32}, alpha_pattern=alphas) == (
        expected
    )


def test_patterns_are_matched_as_in_peft() -> None:
    from peft.utils.other import get_pattern_key

    patterns = ["up_proj", "0.self_attn", r"layers\.(0|3)\..*_proj", r"[^x]*", "model"]
    for some in (patterns, patterns[:2], patterns[1:], patterns[3:]):
        found = of(rank_pattern=dict(zip(some, range(1, 9), strict=False)))
        for name in (Q, UP):
            key = get_pattern_key(some, name)
            assert found[name][0] == (some.index(key) + 1 if key in some else 8)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "no regular expression"),
        ("x{99999999999}", "no regular expression"),
        ("(([a-z_.0-9])+)+!", "longer than 0.5 s"),
        ("(" * 100_000, "(no regular expression|too much memory)"),
    ],
)
def test_a_pattern_costs_no_more_than_its_adapter(
    pattern: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "SECONDS", 0.5)
    before = children()
    with pytest.raises(ModelError, match=re.compile(words)):
        of(alpha_pattern={pattern: 3.0})
    assert children() == before


def children() -> set[str]:
    """Child processes of this one."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())
