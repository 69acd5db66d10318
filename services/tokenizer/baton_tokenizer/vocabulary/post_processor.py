"""Post-processors of a tokenizer.json, which add the first and last tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Token = tuple[str, int]
"""Name and id."""


def frame(prefix: Sequence[Token], suffix: Sequence[Token]) -> dict[str, Any] | None:
    """Post-processor that adds these tokens around a text and both texts of a pair; None if
    none."""
    if not prefix and not suffix:
        return None

    def around(name: str, kind: int) -> list[dict[str, Any]]:
        body = {"Sequence": {"id": name, "type_id": kind}}
        return [*_special(prefix, kind), body, *_special(suffix, kind)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in (*prefix, *suffix)
        },
    }


def bert_frame(first: Token, last: Token) -> dict[str, Any]:
    """BERT's form of one text or a pair: [CLS] A [SEP] B [SEP]."""
    single = frame([first], [last])
    assert single is not None
    second = [{"Sequence": {"id": "B", "type_id": 1}}, *_special([last], 1)]
    return {**single, "pair": [*single["single"], *second]}


def _special(tokens: Sequence[Token], kind: int) -> list[dict[str, Any]]:
    return [{"SpecialToken": {"id": name, "type_id": kind}} for name, _ in tokens]
