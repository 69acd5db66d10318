"""Frames of server-sent events.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment, which clients ignore."""
_TYPE = b'{"type":"'


class EventFrames:
    """Frames the payloads of one stream as plain events: one `data: ` line each.

    Many clients read an event as what follows `data: ` at its start, so it has no other field.
    """

    __slots__ = ()

    def event(self, payload: bytes) -> bytes:
        """Return the next event."""
        return b"data: %b\n\n" % payload

    def error(self, payload: bytes) -> bytes:
        """Return the event of an error."""
        return b"data: %b\n\n" % payload


class NamedFrames(EventFrames):
    """Frames of the Messages API: each event is named by the type of its payload, which is the
    payload's first field."""

    __slots__ = ()

    def event(self, payload: bytes) -> bytes:
        """Return the next event."""
        assert payload.startswith(_TYPE), payload
        name = payload[len(_TYPE) : payload.index(b'"', len(_TYPE))]
        return b"event: %b\ndata: %b\n\n" % (name, payload)

    def error(self, payload: bytes) -> bytes:
        """Return the event of an error."""
        return self.event(payload)


class NumberedFrames(EventFrames):
    """Frames of a stream that can be resumed: each event has `id: <name>:<n>`, n counting from
    `first`.

    An error has no id, so that clients resume after the last regular event.
    """

    __slots__ = ("_name", "_next")

    def __init__(self, name: str, first: int = 0) -> None:
        self._name, self._next = name.encode(), first

    def event(self, payload: bytes) -> bytes:
        """Return the next event."""
        frame = b"id: %b:%d\ndata: %b\n\n" % (self._name, self._next, payload)
        self._next += 1
        return frame
