from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_scheduler.queueing.policies import ORDERS, parse_weights
from baton_scheduler.queueing.queue import Queue


def test_every_order_is_a_kind_of_queue() -> None:
    assert ORDERS.names()[0] == "fcfs"
    assert all(issubclass(ORDERS.load(name), Queue) for name in ORDERS.names())


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(SettingsError, match="Known: fcfs"):
        ORDERS.check("fcsf")


def test_weights_are_read() -> None:
    assert parse_weights("") == {}
    assert parse_weights("a=1, b=2.5,a=b=4") == {"a": 1.0, "b": 2.5, "a=b": 4.0}


@pytest.mark.parametrize("text", ["a", "a=", "a=x", "a=0", "a=-1", "a=inf", "a=nan", "=,a=1,b"])
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TENANT=WEIGHT"):
        parse_weights(text)
