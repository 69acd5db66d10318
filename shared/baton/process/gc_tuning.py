"""Tuning of Python's cyclic garbage collector for short starts and low latency.

Objects loaded at startup live as long as the process; traversing them repeatedly only delays
streams (a gateway has a quarter of a million). Per-token objects are freed by reference counting;
only requests, which are few, create cycles.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Net allocations between two collections of the youngest generation; Python's default is 700."""


def pause() -> None:
    """Collect nothing while modules are imported: what they make stays, and to traverse it again
    and again is an eighth of the time that a worker's imports take."""
    gc.disable()


def resume() -> None:
    """Exclude what was imported from later collections, and collect again."""
    gc.freeze()
    gc.enable()


def settle() -> None:
    """Exclude all current objects from later collections. Call it when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
