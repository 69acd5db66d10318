from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from baton.errors import SettingsError
from baton.net import curve as module
from baton.net.curve import CurveKeys, own_keys
from baton.net.sockets import (
    Client,
    Received,
    Server,
    wait,
)
from baton.net.topology import FLEET, FRONTEND
from baton.protocol import Abort, Beat
from baton.settings import Settings
from baton_ops.commands.keys import make

BEAT = Beat("x", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "of-all"
    assert len(make(folder)) == 5
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    keys = CurveKeys.load(folder, "scheduler")
    with Server(FRONTEND, "tcp://127.0.0.1:*", keys=keys) as server:
        yield server


def address(server: Server) -> str:
    return server.socket.getsockopt_string(zmq.LAST_ENDPOINT)


def heard(server: Server, client: Client, seconds: float) -> list[Received]:
    """Whatever arrives while the client keeps trying."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        client.send(BEAT)
        wait((server,), 0.05)
        if found := list(server.drain()):
            return found
    return []


@pytest.mark.parametrize("role", ["gateway", "scheduler"])
def test_the_services_of_a_link_talk_both_ways(folder: Path, server: Server, role: str) -> None:
    with Client(FRONTEND, address(server), b"a", CurveKeys.load(folder, role)) as client:
        [received] = heard(server, client, 10)[:1]
        assert received.message == BEAT
        server.send(received.peer, BEAT)
        assert wait((client,), 5)
        assert [r.message for r in client.drain()] == [BEAT]


@pytest.mark.parametrize("role", ["worker", "tokenizer", "mm-preprocess"])
def test_the_key_of_another_role_is_not_let_in(folder: Path, server: Server, role: str) -> None:
    with Client(FRONTEND, address(server), b"b", CurveKeys.load(folder, role)) as client:
        assert not heard(server, client, 0.5)


def test_an_unknown_key_is_not_let_in(folder: Path, server: Server) -> None:
    public, secret = zmq.curve_keypair()
    stranger = CurveKeys(folder, "gateway", public, secret)
    with Client(FRONTEND, address(server), b"c", stranger) as client:
        assert not heard(server, client, 0.5)


def test_a_client_without_keys_is_not_let_in(server: Server) -> None:
    with Client(FRONTEND, address(server), b"d") as client:
        assert not heard(server, client, 0.5)


def test_a_client_does_not_speak_to_a_server_without_the_key(folder: Path) -> None:
    with (
        Server(FRONTEND, "tcp://127.0.0.1:*", trusted_network=True) as server,
        Client(FRONTEND, address(server), b"e", CurveKeys.load(folder, "gateway")) as client,
    ):
        assert not heard(server, client, 0.5)


def test_with_the_authenticator_gone_nobody_is_let_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = module._authenticator()
    keys = CurveKeys.load(folder, "scheduler")
    with Server(FLEET, "tcp://127.0.0.1:*", keys=keys) as server:
        authenticator.stop()
        module._authenticator.cache_clear()
        with Client(FLEET, address(server), b"f", CurveKeys.load(folder, "worker")) as client:
            assert not heard(server, client, 0.5)


def test_garbage_of_a_friend_is_dropped_and_counted(folder: Path, server: Server) -> None:
    with Client(FRONTEND, address(server), b"g", CurveKeys.load(folder, "gateway")) as client:
        assert heard(server, client, 10)
        client.socket.send_multipart([b"\x80\x04cposix\nsystem\n"])
        client.send(Abort(b"\1\0\0\0"))
        end = time.monotonic() + 60
        seen: list[Received] = []
        while time.monotonic() < end and not any(isinstance(r.message, Abort) for r in seen):
            wait((server,), 0.05)
            seen += server.drain()
        assert server.dropped == 1


def test_keys_stand_in_for_a_trusted_network(folder: Path) -> None:
    with Server(FRONTEND, "tcp://*:*", keys=CurveKeys.load(folder, "scheduler")):
        pass


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "worker.key_secret").chmod(0o644)
    with pytest.raises(SettingsError, match="0600"):
        CurveKeys.load(tmp_path, "worker")


@pytest.mark.parametrize("content", ["", 'public-key = "short"\nsecret-key = "short"\n'])
def test_an_empty_or_damaged_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "worker.key_secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match="baton keys"):
        CurveKeys.load(tmp_path, "worker")


def test_without_a_directory_there_are_no_keys() -> None:
    assert own_keys(Settings()) is None


def test_a_service_without_its_key_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="baton keys"):
        own_keys(Settings(curve_keys_dir=tmp_path))
