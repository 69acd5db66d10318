"""The measurement runs, and says the ratio to tcp of every transport that it finds."""

from __future__ import annotations

import io

from rich.console import Console

from baton_worker.kv_transfer.__main__ import measure, table


def test_every_transport_is_measured_between_two_processes() -> None:
    rates = measure(tokens=64, rounds=1)
    assert {"shm", "tcp"} <= rates.keys()
    assert all(len(found) == 1 and found[0] > 0 for found in rates.values())
    page = io.StringIO()
    Console(file=page, width=100).print(table(rates, 64))
    assert "times tcp" in page.getvalue() and "1.00" in page.getvalue()
