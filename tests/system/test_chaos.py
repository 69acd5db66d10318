"""Any process may die or stand still at any moment: no token is lost, doubled or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.__main__ import Chaos, chaos


@pytest.mark.slow
def test_no_token_is_lost_whatever_dies(stories: Path) -> None:
    options = Chaos(model=str(stories), vocab=512, seconds=20, streams=12, every=2.5)
    report = chaos(options, Console(quiet=True))
    assert sum(report.hurts.values()) >= 5, report.hurts
    assert report.verdicts["whole"] > 20, report
    assert report.broken == 0, report.details
    assert report.verdicts["error"] <= 1, report.details
