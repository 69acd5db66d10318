from __future__ import annotations

from baton.protocol import Pulled, TransferStats
from baton_scheduler.disaggregation.transfer_stats import TransferTotals


def pulled(transport: str, reason: str = "") -> Pulled:
    return Pulled(1, 1, reason, 100, 250_000, transport)


def test_each_transport_is_counted_apart() -> None:
    carried = TransferTotals()
    for transport, reason in (("tcp", ""), ("shm", ""), ("shm", ""), ("tcp", "late"), ("", "x")):
        carried.add(pulled(transport, reason))
    assert carried.stats() == (
        TransferStats("none", 0, 1, 0, 0.0),
        TransferStats("shm", 2, 0, 200, 0.5),
        TransferStats("tcp", 1, 1, 100, 0.25),
    )


def test_names_without_end_are_not_kept() -> None:
    carried = TransferTotals()
    for number in range(100):
        carried.add(pulled(f"t{number}"))
    rows = carried.stats()
    assert len(rows) == 17
    assert sum(row.done for row in rows) == 100
