"""Events that clients send over /v1/realtime.

https://platform.openai.com/docs/api-reference/realtime-client-events
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, TypeVar

import msgspec

from baton.errors import InvalidRequest
from baton_gateway.http.errors import invalid

_SAMPLE_BYTES = 2


class ClientEvent(msgspec.Struct, frozen=True):
    """Fields of all events."""

    type: str
    event_id: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    """The client's id of the event, for errors about it."""


class AudioAppend(msgspec.Struct, frozen=True):
    """input_audio_buffer.append"""

    audio: str
    """Samples of 16 bits, little-endian, mono, in base64."""

    def samples(self) -> bytes:
        """The samples. Raises `InvalidRequest`."""
        try:
            data = base64.b64decode(self.audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise invalid("audio", "Invalid 'audio': this is not base64.") from error
        if not data or len(data) % _SAMPLE_BYTES:
            raise invalid("audio", "Invalid 'audio': send whole samples of 16 bits, at least one.")
        return data


class AudioCommit(msgspec.Struct, frozen=True):
    """input_audio_buffer.commit"""

    final: bool = False
    """No more audio follows (vLLM)."""


E = TypeVar("E", ClientEvent, AudioAppend, AudioCommit)


def read_event(data: str, kind: type[E]) -> E:
    """Parse a message. Raises `InvalidRequest`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"Invalid event: {error}.", code="invalid_value") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(
            "We could not parse the event. Send one JSON object.", code="invalid_json"
        ) from error
