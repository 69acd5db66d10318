"""Pixels of a media item from a gateway on another host."""

from __future__ import annotations

import itertools
import os
import time

from baton.net.curve import CurveKeys, own_keys
from baton.net.sockets import Client, wait
from baton.net.topology import PIXELS
from baton.process.pixel_store import PixelsGone
from baton.protocol import TakenPixels, TakePixels
from baton.settings import Settings

CONNECT_SECONDS = 1.0
"""Connection timeout: the steps of other sequences wait too."""
ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.002
_numbers = itertools.count(1)


class _Identity:
    """CURVE keys of this process, see `use`."""

    keys: CurveKeys | None = None


def use(settings: Settings) -> None:
    """Take pixels as the service with these settings. Raises `SettingsError`."""
    _Identity.keys = own_keys(settings)


def fetch(address: str, token: bytes) -> bytes:
    """The pixels of a handle, over a connection of their own.

    Raises:
        PixelsGone: their gateway does not answer, or has released them.
    """
    name = f"pixels-{os.getpid()}-{next(_numbers)}".encode()
    with Client(PIXELS, address, name, _Identity.keys) as client:
        _ask(client, token)
        data = _answer(client, token)
    if not data:
        raise PixelsGone("their owner has let them go")
    return data


def _ask(client: Client, token: bytes) -> None:
    end = time.monotonic() + CONNECT_SECONDS
    while not client.send(TakePixels(token)):
        if time.monotonic() > end:
            raise PixelsGone("their gateway cannot be reached")
        time.sleep(_POLL_SECONDS)


def _answer(client: Client, token: bytes) -> bytes:
    end = time.monotonic() + ANSWER_SECONDS
    while not client.broke() and time.monotonic() < end:
        wait((client,), 0.05)
        for received in client.drain():
            answer = received.message
            if isinstance(answer, TakenPixels) and answer.token == token:
                return answer.data
    raise PixelsGone("their gateway does not answer")
