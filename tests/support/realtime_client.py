"""A client of /v1/realtime."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection, connect

from tests.support.served_system import PATIENCE

APPEND, COMMIT = "input_audio_buffer.append", "input_audio_buffer.commit"
Samples = npt.NDArray[np.float32]


def opened(at: str, **options: Any) -> connect:
    """A connection that reads whatever comes, so that it can be closed at any time."""
    return connect(f"ws://{at}/v1/realtime", max_queue=None, **options)


def pcm(samples: Samples) -> bytes:
    """Samples of 16 bits, as in a WAV file of `tiny_whisper`."""
    return (samples * 32767).round().astype("<i2").tobytes()


class RealtimeClient:
    """Sends events, and reads those that come."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self._socket.send(json.dumps({"type": kind} | fields))

    async def append(self, samples: Samples, step: int = 4000) -> None:
        """Send audio in parts."""
        for first in range(0, len(samples), step):
            data = base64.b64encode(pcm(samples[first : first + step])).decode()
            await self.send(APPEND, audio=data)

    async def next(self) -> dict[str, Any]:
        """The next event."""
        async with asyncio.timeout(PATIENCE):
            event = json.loads(await self._socket.recv())
        assert event["event_id"].startswith("event_")
        return dict(event)

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Events up to the first of a kind."""
        found = [await self.next()]
        while found[-1]["type"] != kind:
            assert found[-1]["type"] != "error" or kind == "error", found[-1]
            found.append(await self.next())
        return found
