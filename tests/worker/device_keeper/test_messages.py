"""Messages between a worker and the keeper of its GPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from baton.errors import SettingsError
from baton_worker.device_keeper.messages import (
    LONGEST,
    Answer,
    Done,
    Drop,
    Find,
    Found,
    Lease,
    Leased,
    Leave,
    Refused,
    Request,
    Seal,
    address,
)


def test_every_message_is_read_as_what_it_is_and_fits() -> None:
    name = "weights " + "f" * 64
    requests = (Lease(name, b"k" * 32, 1 << 40, 7), Find(name), Seal(name, -1), Drop(name))
    for request in (*requests, Leave(b"g" * 16)):
        sent = msgspec.msgpack.encode(request)
        assert len(sent) < LONGEST and msgspec.msgpack.decode(sent, type=Request) == request
    leased = Leased(b"h" * 64, b"g" * 16, True, 1 << 62)
    for answer in (leased, Found(b"g" * 16, 1 << 40, 7, True), Done(), Refused("it is full")):
        sent = msgspec.msgpack.encode(answer)
        assert len(sent) < LONGEST and msgspec.msgpack.decode(sent, type=Answer) == answer


def test_each_gpu_has_a_socket_of_its_own(tmp_path: Path) -> None:
    assert len({address(Path("/run/baton"), gpu) for gpu in range(8)}) == 8
    with pytest.raises(SettingsError, match="too deep for a socket"):
        address(tmp_path / ("x" * 90), 0)
