"""Python's search for cycles of garbage, for a process that hands on many small things in time.

What a service has loaded lives as long as it does: to look through it again and again only makes
streams wait (a gateway's is a quarter of a million objects). What a token needs is freed by its
reference count; cycles come of requests, of which there are few.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Objects made, less those freed, between two searches among the youngest. Python's own is 700."""


def settle() -> None:
    """Everything is loaded: what there is now is never looked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
