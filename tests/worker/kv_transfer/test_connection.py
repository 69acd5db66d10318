"""Invalid messages of a source that a transfer connection rejects."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.protocol import Block, Fetch, Missing, Opened, Pull
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.kv_transfer.connection import TransferConnection
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.kv_transfer.tcp import Tcp
from baton_worker.kv_transfer.transport import TransferError
from baton_worker.kv_transfer.wire_format import Extent
from tests.fakes.page_caches import TOKEN, cache

PULL = Pull(1, 9, "", TOKEN, 0, 8, pack([0], "I"), 1)
GOOD = {"id": 9, "transport": "tcp", "places": 8, "place_bytes": 1024 * 1024}


class Scripted:
    """A source that says what it is told to say."""

    def __init__(self, connection: TransferConnection, *messages: Any) -> None:
        self.outstanding: list[Any] = []
        self._messages = list(messages)
        connection._client.close()
        connection._client = self  # type: ignore[assignment]
        connection._receive = self._receive  # type: ignore[method-assign]

    def send(self, message: Any) -> bool:
        self.outstanding.append(message)
        return True

    def close(self) -> None:
        pass

    def _receive(self) -> list[Any]:
        if not self._messages:
            raise TransferError("the source sends nothing")
        return [self._messages.pop(0)]


def connection(run_dir: Path) -> TransferConnection:
    return TransferConnection(
        PageContent(cache(8)), "w", f"ipc://{run_dir}/p.sock", threading.Event()
    )


def opened(run_dir: Path, *messages: Any) -> tuple[TransferConnection, Scripted]:
    made = connection(run_dir)
    script = Scripted(made, *messages)
    made.open(PULL, {"tcp": Tcp(Config())}, "here")
    return made, script


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"transport": "nixl"}, "not offered"),
        ({"places": 0}, "wrong size"),
        ({"places": 10**6}, "wrong size"),
        ({"place_bytes": 4096}, "wrong size"),
        ({"transport": "", "reason": "refused"}, "refuses"),
        ({"transport": "", "reason": "stale"}, "another epoch"),
        ({"transport": "", "reason": "no transport in common"}, "no transport in common"),
    ],
)
def test_a_lane_is_as_it_must_be_or_not_opened(
    run_dir: Path, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TransferError, match=reason):
        opened(run_dir, Opened(**GOOD | fields))


def test_a_grant_that_is_not_there_yet_is_asked_for_again(run_dir: Path) -> None:
    made, script = opened(run_dir, Opened(9, reason="unknown"), Opened(**GOOD))  # type: ignore[arg-type]
    assert len(script.outstanding) == 2 and made.transport == "tcp"


def test_no_more_is_asked_for_than_there_are_places(run_dir: Path) -> None:
    made, script = opened(run_dir, Opened(**GOOD | {"places": 3}))
    with pytest.raises(TransferError, match="nothing"):
        made.run(PULL, [Extent(0, n, n + 1) for n in range(8)], lambda *_: None)
    fetches = [message for message in script.outstanding if isinstance(message, Fetch)]
    assert sorted(fetch.place for fetch in fetches) == [0, 1, 2]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Opened(9), "not asked for"),
        (Block(9, 1, 0, "bfloat16", 0, b""), "not asked for"),
        (Missing(9, 0, 0, "refused"), "refuses"),
        (Missing(9, 0, 0, "stale"), "another epoch"),
    ],
)
def test_what_was_not_asked_for_ends_the_pull(run_dir: Path, message: Any, reason: str) -> None:
    made, _ = opened(run_dir, Opened(**GOOD), message)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match=reason):
        made.run(PULL, [Extent(0, 0, 8)], lambda *_: None)


def test_a_source_that_knows_no_such_grant_is_given_up_although_it_speaks(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it says so; what else it sends late is heard."""
    monkeypatch.setattr("baton_worker.kv_transfer.connection.TIMEOUT_SECONDS", 0.0)
    made, said = connection(run_dir), [Missing(9, 0, 0, "unknown")]
    received = [SimpleNamespace(message=message) for message in said]
    monkeypatch.setattr(made._client, "drain", lambda: received)
    with pytest.raises(TransferError, match="nothing"):
        made._receive()
    block = Block(9, 0, 0, "bfloat16", 0, b"")  # type: ignore[arg-type]
    received.append(SimpleNamespace(message=block))
    assert made._receive() == [*said, block]
    made.close()


def test_the_end_of_the_worker_ends_the_pull(run_dir: Path) -> None:
    ended = threading.Event()
    ended.set()
    made = TransferConnection(PageContent(cache(8)), "w", f"ipc://{run_dir}/p.sock", ended)
    with pytest.raises(TransferError, match="has left"):
        made.open(PULL, {"tcp": Tcp(Config())}, "here")
    made.close()
