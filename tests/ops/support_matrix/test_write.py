"""The support matrix states what the tests prove, and no more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from baton.errors import BatonError
from baton_ops.support_matrix.feature_rows import Features
from baton_ops.support_matrix.write import Matrix, run

FEATURES = Path(__file__).parents[3] / "docs" / "features.json"


def result(outcome: str = "passed", kind: str = "works") -> dict[str, str]:
    return {"test": "tests/test_x.py::test_y", "outcome": outcome, "kind": kind}


def write(
    tmp_path: Path,
    rows: dict[str, list[dict[str, str]]],
    card: tuple[Path, ...] = (),
    **ledger: Any,
) -> str:
    """Run `baton matrix` on a ledger; the page that it wrote."""
    whole = {"finished": "2026-11-20T12:00:00+00:00", "selected": "full", "failed": 0, "rows": rows}
    whole["registered"] = ["LlamaForCausalLM", "MistralForCausalLM"]
    (tmp_path / "rows.json").write_text(json.dumps({**whole, **ledger}))
    out = tmp_path / "SUPPORT.md"
    options = Matrix(features=FEATURES, rows=tmp_path / "rows.json", card_rows=card, out=out)
    run(options, Console(quiet=True))
    return out.read_text()


@pytest.mark.row("F22.09")
def test_the_list_of_rows_is_complete() -> None:
    features = msgspec.json.decode(FEATURES.read_bytes(), type=Features)
    ids = [row for group in features.groups for row in group.rows]
    architectures = Counter(row[0] for row in ids if "." not in row)
    assert len(ids) == len(set(ids)) == 577
    assert architectures.total() == 194 and len(ids) - architectures.total() == 383
    assert all(re.fullmatch(r"[A-Z]\d\d(\.\d\d)?", row) for row in ids)
    assert all(title.strip() for group in features.groups for title in group.rows.values())


@pytest.mark.row("F22.09")
def test_the_page_counts_and_lists(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        {
            "T01": [result(), result()],
            "T02": [result(), result("skipped")],
            "V01": [result(kind="refuses")],
        },
    )
    assert "| T01 | LlamaForCausalLM | **works** | 2 |" in text
    assert "| T02 | MistralForCausalLM | absent | 1 of 2 |" in text
    assert re.search(r"^\| V01 \| \S+ \| \*\*refuses\*\* \| 1 \|$", text, re.MULTILINE)
    assert "| Dense text | 1 | 0 | 42 | 43 |" in text
    assert "| **all** | 1 | 1 | 575 | 577 |" in text
    assert (
        len(re.findall(r"^\| [A-Z]\d\d", text.partition("## Architectures,")[0], re.MULTILINE))
        == 577
    )


def test_the_same_results_make_the_same_page(tmp_path: Path) -> None:
    one = write(tmp_path, {"T01": [result()], "F09.01": [result()]}, finished="yesterday")
    two = write(tmp_path, {"F09.01": [result()], "T01": [result()]}, finished="today")
    assert one == two


@pytest.mark.parametrize(
    ("ledger", "sentence"),
    [
        ({"selected": "part"}, "only a part"),
        ({"rows": {"Z99": [result()]}}, "do not exist: Z99"),
        ({"rows": {"T01": [{"test": "x"}]}}, "make test"),
    ],
)
def test_refuses_what_proves_less(tmp_path: Path, ledger: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BatonError, match=sentence):
        write(tmp_path, **{"rows": {}, **ledger})
    assert not (tmp_path / "SUPPORT.md").exists()


@pytest.mark.row("F22.09")
def test_a_run_with_failures_says_so(tmp_path: Path) -> None:
    rows = {"T01": [result(), result("failed")], "T02": [result()]}
    text = write(tmp_path, rows, failed=1)
    assert "Tests of that run that failed: 1." in text
    assert "| T01 | LlamaForCausalLM | absent | 1 of 2 |" in text
    assert "| T02 | MistralForCausalLM | **works** | 1 |" in text
    assert "that failed" not in write(tmp_path, rows)


def test_what_a_card_has_run_counts_where_it_was_skipped(tmp_path: Path) -> None:
    card = {"card": "NVIDIA H100 80GB HBM3", "finished": "2026-11-26T18:00:00+00:00", "failed": 0}
    rows = {"T01": [result()], "T02": [result("skipped")], "T03": [result("skipped")]}
    (tmp_path / "card.json").write_text(json.dumps({**card, "rows": rows}))
    without = {"T01": [result("skipped")], "T02": [result()], "T03": [result("skipped")]}
    text = write(tmp_path, without, card=(tmp_path / "card.json",))
    assert "ran on NVIDIA H100 80GB HBM3, 2026-11-26." in text
    assert "| T01 | LlamaForCausalLM | **works** | 1 |" in text
    assert "| T02 | MistralForCausalLM | **works** | 1 |" in text
    assert re.search(r"^\| T03 \| \S+ \| absent \| 0 of 1 \|$", text, re.MULTILINE)
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(BatonError, match="machine with a GPU"):
        write(tmp_path, without, card=(tmp_path / "card.json",))


def test_without_a_test_run_it_says_how_to_make_one(tmp_path: Path) -> None:
    options = Matrix(features=FEATURES, rows=tmp_path / "none.json", out=tmp_path / "SUPPORT.md")
    with pytest.raises(BatonError, match="make test"):
        run(options, Console(quiet=True))


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "baton", "matrix", "--features", str(FEATURES)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "make test" in done.stderr
    ledger = {"selected": "full", "failed": 0, "rows": {}, "registered": ["LlamaForCausalLM"]}
    (tmp_path / ".baton").mkdir()
    (tmp_path / ".baton" / "rows.json").write_text(json.dumps(ledger))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("wrote SUPPORT.md: 0 works, 0 refuses, 577 absent\n")
    assert re.search(r"T01\W+LlamaForCausalLM\W+yes\W+yes\W+-\W+-", done.stdout)
