"""Progress bars show the failures of each run."""

from __future__ import annotations

import io

from rich.console import Console

from baton_ops.bench.load_generator import Outcome
from baton_ops.bench.progress import ProgressBars


def test_a_bar_counts_requests_and_failures() -> None:
    printed = io.StringIO()
    with ProgressBars(Console(file=printed, width=100)) as bars:
        with bars.bar("8 in flight", 3) as done:
            done(Outcome(0.0))
            done(Outcome(0.0, error="No."))
        with bars.bar("another", 1) as done:
            done(Outcome(0.0))
    first, second = printed.getvalue().splitlines()
    assert "8 in flight" in first and "2/3" in first and "1 failed" in first
    assert "another" in second and "1/1" in second and "failed" not in second
