from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_scheduler.orders import ORDERS
from baton_scheduler.queue import Queue


def test_every_order_is_a_kind_of_queue() -> None:
    assert ORDERS.names()[0] == "fcfs"
    assert all(issubclass(ORDERS.load(name), Queue) for name in ORDERS.names())


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(SettingsError, match="Known: fcfs"):
        ORDERS.check("fcsf")
