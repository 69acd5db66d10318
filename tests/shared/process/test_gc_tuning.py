"""Objects loaded at startup are excluded from garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from baton.process import gc_tuning


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests run under Python's own settings."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.myself = self


def test_what_is_loaded_is_left_alone_and_later_cycles_are_still_found() -> None:
    loaded = Ring()
    before = weakref.ref(loaded)
    gc_tuning.settle()
    assert gc.get_freeze_count() > 1000
    assert not any(one is loaded for one in gc.get_objects())
    del loaded
    later = weakref.ref(Ring())
    gc.collect()
    assert later() is None and before() is not None


def test_nothing_is_collected_while_modules_are_imported() -> None:
    gc_tuning.pause()
    try:
        assert not gc.isenabled()
    finally:
        gc_tuning.resume()
    assert gc.isenabled() and gc.get_freeze_count() > 1000
