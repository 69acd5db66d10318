"""Support levels, from the tables and the test results."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from baton_ops.support_matrix.feature_rows import Features, RowLedger
from baton_ops.support_matrix.levels import (
    NAMES,
    Levels,
    levels,
    markdown,
    table,
    totals,
)
from tests.support.registered_architectures import registered

FEATURES = msgspec.json.decode(
    (Path(__file__).parents[3] / "docs" / "features.json").read_bytes(), type=Features
)


def ledger(**rows: list[tuple[str, str]]) -> RowLedger:
    found = {
        row: [{"test": "t", "outcome": outcome, "kind": kind} for outcome, kind in results]
        for row, results in rows.items()
    }
    whole: dict[str, Any] = {"rows": found, "selected": "full", "failed": 0}
    whole |= {"registered": ["LlamaForCausalLM", "MistralForCausalLM", "OPTForCausalLM"]}
    whole |= {"preprocessors": ["Qwen3_5ForConditionalGeneration"]}
    return msgspec.convert(whole, RowLedger)


def of(row: str, found: RowLedger) -> Levels:
    return next(one for one in levels(FEATURES, found) if one.row == row)


@pytest.mark.row("F22.01")
@pytest.mark.parametrize(
    ("row", "results", "expected"),
    [
        ("T01", [("passed", "works"), ("passed", "works")], (True, True, True, True)),
        ("T02", [("passed", "works"), ("skipped", "works")], (True, True, True, False)),
        ("T22", [], (True, True, False, False)),
        ("T03", [], (False, False, False, False)),
        ("V01", [("passed", "refuses")], (False, True, False, False)),
        ("V02", [], (False, False, False, False)),
    ],
)
def test_levels_of_an_architecture(
    row: str, results: list[tuple[str, str]], expected: tuple[bool, ...]
) -> None:
    assert of(row, ledger(**{row: results})).reached == expected


@pytest.mark.row("F22.01")
def test_every_architecture_is_printed_once() -> None:
    found = [*levels(FEATURES, ledger(T01=[("passed", "works")]))]
    assert len(found) == 194 and len({one.row for one in found}) == 194
    assert totals(found) == dict(zip(NAMES, (3, 4, 1, 1), strict=True))
    lines = markdown(found)
    assert "| T01 | LlamaForCausalLM | ✓ | ✓ | ✓ | ✓ |" in lines
    assert "| T02 | MistralForCausalLM | ✓ | ✓ |  |  |" in lines
    console = Console(width=120, record=True, file=StringIO())
    console.print(table(found))
    assert console.export_text().count("ForCausalLM") > 80


def test_the_tables_name_what_is_registered() -> None:
    names = registered()
    assert {"LlamaForCausalLM", "BertForSequenceClassification", "RobertaModel"} <= set(names)
