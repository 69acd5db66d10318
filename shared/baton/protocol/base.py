"""Base classes of all wire messages."""

from __future__ import annotations

import msgspec

PROTOCOL = 2
"""Major version of the protocol. Peers of different versions refuse each other."""


class Message(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
    tag_field="type",
):
    """A typed frame. Fields are appended with defaults and never reordered.

    Columns are `bytes` packed by `baton.protocol.token_columns.pack`, little-endian; the docstring
    of each states its item type.
    """


class RpcRequest(Message, frozen=True):
    """A request to a stateless service, answered by one `RpcReply`."""

    id: int
    """uint32, chosen by the client; the reply carries it."""


class RpcReply(Message, frozen=True):
    """Answer to a `RpcRequest`."""

    id: int
    """Id of the request."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Header frame of every message."""

    version: int = PROTOCOL
    epoch: int = 0
    """Incarnation that the work was granted to; results of an older one are dropped."""
    deadline_ms: int = 0
    """Milliseconds left until the deadline when sent; 0 means no deadline."""
    trace: str = ""
    """W3C traceparent of the request, or empty."""
