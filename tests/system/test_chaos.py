"""Any process may die or stand still at any moment, any link may be cut, broken or slow: no token
is lost, doubled or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.chaos.__main__ import Chaos, chaos
from tests.chaos.faults import USUAL
from tests.chaos.report import Report

pytestmark = pytest.mark.slow


def run(stories: Path, **options: Any) -> Report:
    """No answer is anything but whole, and nothing is held at the end."""
    chosen = Chaos(model=str(stories), vocab=512, **options)
    report = chaos(chosen, Console(quiet=True))
    assert report.broken == report.quarantines == 0, report.details
    assert report.verdicts()["error"] <= 1, report.details
    return report


def test_no_token_is_lost_whatever_breaks(stories: Path) -> None:
    report = run(stories, seconds=10, streams=8, every=1.2, seed=36, batch_lines=20)
    assert {fault.kind for fault in report.faults} == set(USUAL)
    assert report.verdicts()["whole"] > 10, report
    assert [line.verdict for line in report.jobs["batch lines"]] == ["whole"] * 20


def test_nor_where_several_share_a_port_and_go_on_for_each_other(stories: Path) -> None:
    """Gateways that hear nothing of the scheduler send their streams to the other one; what is
    stopped is replaced before it goes on."""
    report = run(
        stories, seconds=9, streams=6, every=1.5, seed=295, kinds=("stop", "cut"),
        gateways=2, tokenizers=2,
    )  # fmt: skip
    names = {fault.name for fault in report.faults}
    assert {"cut frontend", "cut tokenize", "stop scheduler"} <= names, names
    assert sum(outcome.resumed for outcome in report.outcomes) > 0
    assert report.verdicts()["whole"] > 6, report


def test_nor_while_keys_are_on_their_way(stories: Path) -> None:
    """Real workers that prefill and decode, whose pages travel over TCP on a wire of their own."""
    report = run(
        stories, seconds=5, streams=3, every=0.7, seed=11, kinds=("cut", "break", "slow"),
        real=True, workers=0, prefill=1, decode=1, spares=False,
    )  # fmt: skip
    assert any(fault.target.startswith("pages") for fault in report.faults)
    assert report.verdicts()["whole"] >= 3, report
    assert report.handoffs > 0


def test_nor_where_a_service_hangs_until_it_is_replaced(stories: Path) -> None:
    """Every kind of service tells its supervisor that its loop turns, and then it does not."""
    report = run(
        stories, seconds=9, streams=4, every=2, seed=19, kinds=("hang",), hung_seconds=0.5,
        gateways=2, tokenizers=2,
    )  # fmt: skip
    kinds = ("gateway", "tokenizer", "mm-preprocess", "scheduler")
    assert {fault.name for fault in report.faults} == {f"hang {kind}" for kind in kinds}
    assert report.verdicts()["whole"] > 4, report
