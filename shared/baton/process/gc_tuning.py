"""Tuning of Python's cyclic garbage collector for low latency.

Objects loaded at startup live as long as the process; traversing them repeatedly only delays
streams (a gateway has a quarter of a million). Per-token objects are freed by reference counting;
only requests, which are few, create cycles.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Net allocations between two collections of the youngest generation; Python's default is 700."""


def settle() -> None:
    """Exclude all current objects from later collections. Call it when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
