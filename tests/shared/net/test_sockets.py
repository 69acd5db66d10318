from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import zmq

from baton.errors import SettingsError
from baton.net.sockets import (
    AsyncClient,
    Client,
    Received,
    Server,
    check_bind,
    wait,
)
from baton.net.topology import FRONTEND
from baton.protocol import Abort, Beat, Envelope, Stats, Tokens

ABORT = Abort(b"\1\0\0\0")


@pytest.fixture
def address(run_dir: Path) -> str:
    return f"ipc://{run_dir}/link.sock"


def until_sent(client: Client, message: Abort | Beat) -> None:
    end = time.monotonic() + 60
    while not client.send(message):
        assert time.monotonic() < end
        time.sleep(0.01)


def receive(endpoint: Server | Client) -> list[Received]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := list(endpoint.drain()):
            return found
        wait((endpoint,), 0.1)
    raise AssertionError("nothing arrived")


def test_both_directions(address: str) -> None:
    with Server(FRONTEND, address) as server, Client(FRONTEND, address, b"gw") as client:
        until_sent(client, ABORT)
        [received] = receive(server)
        assert (received.peer, received.message) == (b"gw", ABORT)
        assert server.send(b"gw", Tokens(b"", b"", b"", b""), Envelope(epoch=9))
        [answer] = receive(client)
        assert answer.envelope.epoch == 9


def test_what_was_sent_arrives_though_the_server_closes_at_once(address: str) -> None:
    with Client(FRONTEND, address, b"gw") as client:
        with Server(FRONTEND, address) as server:
            until_sent(client, ABORT)
            receive(server)
            for number in range(5):
                assert server.send(
                    b"gw", Tokens(b"", bytes(8_000_000), b"", b""), Envelope(epoch=number)
                )
        arrived: list[Received] = []
        while len(arrived) < 5:
            arrived += receive(client)
    assert [received.envelope.epoch for received in arrived] == list(range(5))


def test_nothing_is_queued_for_a_peer_that_is_not_there(address: str) -> None:
    with Client(FRONTEND, address, b"gw") as client:
        assert not client.send(ABORT)
    with Server(FRONTEND, address) as server:
        assert not server.send(b"nobody", Beat("s", 1))
        assert server.dropped == 1


def test_garbage_is_counted_and_the_socket_lives(address: str) -> None:
    raw = zmq.Context.instance().socket(zmq.DEALER)
    raw.setsockopt(zmq.LINGER, 0)
    with Server(FRONTEND, address) as server, Client(FRONTEND, address, b"good") as client:
        raw.connect(address)
        for frames in ([b""], [b"x"] * 20, [b"\x80\x04cposix\nsystem\n"], [b"a", b"b"]):
            raw.send_multipart(frames)
        until_sent(client, ABORT)
        seen: list[Received] = []
        end = time.monotonic() + 60
        while time.monotonic() < end and (not seen or server.dropped < 4):
            seen += server.drain()
        assert [r.message for r in seen] == [ABORT]
        assert server.dropped == 4
    raw.close()


def test_a_client_follows_its_server_to_another_address(run_dir: Path) -> None:
    first, second = f"ipc://{run_dir}/a", f"ipc://{run_dir}/b"
    with Server(FRONTEND, first) as a, Client(FRONTEND, first, b"gw") as client:
        until_sent(client, ABORT)
        receive(a)
        with Server(FRONTEND, second) as b:
            client.follow(second)
            end = time.monotonic() + 60
            # The old connection may still take a message while it is being closed.
            while not list(b.drain()):
                assert time.monotonic() < end
                client.send(ABORT)
                wait((b,), 0.05)
        client.follow("")


def test_a_connection_that_broke_is_told_once_and_before_what_comes_after(address: str) -> None:
    with Client(FRONTEND, address, b"gw") as client:
        assert not client.broke()
        with Server(FRONTEND, address) as server:
            until_sent(client, ABORT)
            receive(server)
            assert not client.broke()
        with Server(FRONTEND, address) as server:
            end = time.monotonic() + 60
            while not list(server.drain()):  # The first may get lost with the old connection.
                assert time.monotonic() < end
                client.send(ABORT)
                time.sleep(0.02)
            server.send(b"gw", Beat("s", 2))
            receive(client)
            assert client.broke()
            assert not client.broke()


def test_the_asyncio_client(address: str) -> None:
    async def talk() -> Received:
        client = AsyncClient(FRONTEND, address, b"gw")
        while not await client.post(ABORT):
            await asyncio.sleep(0.01)
        receive(server)
        server.send(b"gw", Beat("scheduler", 1))
        try:
            return await asyncio.wait_for(client.receive(), 60)
        finally:
            client.close()

    with Server(FRONTEND, address) as server:
        assert asyncio.run(talk()).message == Beat("scheduler", 1)


def test_a_message_in_the_wrong_direction_is_dropped(address: str) -> None:
    with Server(FRONTEND, address) as server, Client(FRONTEND, address, b"gw") as client:
        until_sent(client, Beat("gw", 1))
        receive(server)
        server.send(b"gw", ABORT)
        server.send(b"gw", Beat("s", 1))
        assert [r.message for r in receive(client)] == [Beat("s", 1)]
        assert client.dropped == 1


def test_binding_where_others_can_reach_needs_the_operators_word(tmp_path: Path) -> None:
    for reach in ("tcp://*:1", "tcp://127.0.0.1:1", "tcp://[::1]:1"):
        check_bind(reach, protected=True)
        with pytest.raises(SettingsError, match="BATON_TRUSTED_NETWORK"):
            check_bind(reach, protected=False)
    tmp_path.chmod(0o755)
    with pytest.raises(SettingsError, match="0700"):
        check_bind(f"ipc://{tmp_path}/s", protected=False)


def test_stats_is_the_biggest_struct_and_still_small() -> None:
    stats = Stats(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    assert stats.workers == ()
