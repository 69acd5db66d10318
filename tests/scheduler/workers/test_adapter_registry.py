"""What names of adapters mean while they are loaded, replaced and unloaded."""

from __future__ import annotations

import pytest

from baton.protocol import AdapterInfo
from baton_scheduler.workers.adapter_registry import AdapterRegistry

pytestmark = pytest.mark.row("F11.04")
ONE, OTHER = AdapterInfo("a", b"1", "/1"), AdapterInfo("a", b"2", "/2")
TWIN = AdapterInfo("b", b"1", "/1")


def test_what_is_replaced_is_dropped_once_nobody_uses_it() -> None:
    names = AdapterRegistry()
    names.add("m", ONE)
    before = names.layout()
    names.add("m", OTHER)
    assert names.get("m", "a") == OTHER and names.get("n", "a") is None
    assert names.waiting == ["m"] and names.unused("m", {b"1"}) == []
    assert names.unused("m", set()) == [b"1"] and names.waiting == [] and names.layout() != before


def test_what_has_two_names_stays_until_both_are_gone() -> None:
    names = AdapterRegistry()
    names.add("m", ONE)
    names.add("m", TWIN)
    assert names.remove("m", "a") == ONE and names.waiting == []
    assert names.listed("m") == (TWIN,) and names.remove("m", "a") is None
    assert names.remove("m", "b") == TWIN and names.waiting == ["m"]
    names.add("m", ONE)
    assert names.waiting == [], "it was loaded again before anybody dropped it"


def test_a_worker_that_joins_tells_what_is_unknown_and_is_told_the_rest() -> None:
    names = AdapterRegistry()
    assert names.joined("m", [ONE, OTHER]) == [] and names.get("m", "a") == OTHER
    assert names.unused("m", set()) == [b"1"], "what its name meant before is left over"
    names.add("m", TWIN)
    assert names.joined("m", [ONE]) == [OTHER], "its own a is not what a means, but b is"
    assert names.joined("m", []) == [OTHER, TWIN] and names.waiting == []
