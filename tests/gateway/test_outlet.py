"""The way past the reader is closed unless somebody has opened it."""

from __future__ import annotations

from array import array

from baton_gateway.generation import Delta
from baton_gateway.outlet import Outlet

DELTA = Delta(0, "a", array("i", [1]))


def test_closed_until_it_is_opened_and_after_it_is_closed() -> None:
    outlet = Outlet()
    assert not outlet.write(DELTA)
    outlet.write = lambda delta: delta is DELTA
    assert outlet.write(DELTA)
    outlet.close()
    assert not outlet.write(DELTA)
