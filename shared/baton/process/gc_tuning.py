"""Tuning of Python's cyclic garbage collector for short starts and low latency.

Objects loaded at startup live as long as the process, and traversing them repeatedly only delays
streams (a gateway has a quarter of a million). Per-token objects are freed by reference counting;
only requests, which are few, create cycles.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Net allocations between two collections of the youngest generation; Python's default is 700."""


def pause() -> None:
    """Disable collection while modules are imported: their objects stay, and traversing them
    repeatedly takes an eighth of a worker's import time."""
    gc.disable()


def resume() -> None:
    """Exclude imported objects from later collections, and enable collection again."""
    gc.freeze()
    gc.enable()


def settle() -> None:
    """Exclude all current objects from later collections. Call it when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
