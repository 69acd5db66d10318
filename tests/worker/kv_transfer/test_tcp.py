from __future__ import annotations

import pytest

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.tcp import Tcp
from baton_worker.kv_transfer.transport import Size, TransportError


def test_a_block_travels_in_its_message() -> None:
    tcp = Tcp(Config())
    sender, receiver = tcp.send(Size(2, 64)), tcp.receive(b"", Size(2, 64))
    sender.view(1, 4)[:] = [1, 2, 3, 4]
    data = sender.data(1, 4)
    assert receiver.take(Block(1, 0, 0, "uint8", 0, data, 4), 1).tolist() == [1, 2, 3, 4]


def test_a_block_without_all_of_its_bytes_is_refused() -> None:
    receiver = Tcp(Config()).receive(b"", Size(2, 64))
    with pytest.raises(TransportError, match="of 4 bytes came with 3"):
        receiver.take(Block(1, 0, 0, "uint8", 0, b"123", 4), 0)
