"""The shape that every wire message has."""

from __future__ import annotations

import msgspec

PROTOCOL = 1
"""Major version of the wire. Two sides with different majors refuse each other."""


class Message(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
    tag_field="type",
):
    """A typed frame. Fields are appended with defaults and never reordered.

    Columns are `bytes` packed by `baton.protocol.token_columns.pack`; the comment behind each says
    its item type.
    """


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What every message carries beside its own fields."""

    version: int = PROTOCOL
    epoch: int = 0
    """Incarnation of the grant of work; a result from an older one is dropped."""
    deadline_ms: int = 0
    """Milliseconds left for this piece of work on the sender's clock; 0 means no deadline."""
    trace: str = ""
    """W3C traceparent of the request, or empty."""
