"""Ranks that find each other, and end together."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.process import standby
from baton_worker.distributed import rendezvous
from baton_worker.distributed.rendezvous import Rendezvous

SECONDS = 20.0


class Group:
    """As many ranks as threads; which of them has lost which."""

    def __init__(self, folder: Path, size: int) -> None:
        self.lost: list[tuple[int, int]] = []
        with ThreadPoolExecutor(size) as pool:
            tied = [pool.submit(self._tie, folder, rank, size) for rank in reversed(range(size))]
        self.bonds = [future.result() for future in reversed(tied)]

    def _tie(self, folder: Path, rank: int, size: int) -> Rendezvous:
        return Rendezvous.join(folder, rank, size, lambda other: self.lost.append((rank, other)))

    def close(self) -> None:
        for bond in self.bonds:
            bond.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_all_meet_at_one_place_and_the_door_is_shut(run_dir: Path) -> None:
    group = Group(run_dir, 3)
    assert len({bond.meeting for bond in group.bonds}) == 1
    assert group.bonds[0].meeting.parent == run_dir and list(run_dir.iterdir()) == []
    assert group.lost == []
    group.close()


def test_the_first_sees_the_end_of_any_and_all_see_its(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(run_dir, 3)
    group.bonds[2].close()
    until(lambda: (0, 2) in group.lost)
    group.bonds[0].close()  # As the end of its process does.
    until(lambda: (1, 0) in group.lost)
    assert sorted(group.lost) == [(0, 2), (1, 0)]
    group.bonds[1].close()
    assert len(group.lost) == 2, "one that is closed reports none again"
    monkeypatch.setattr(rendezvous, "_ENDING_SECONDS", SECONDS)
    pair = Group(run_dir, 2)
    failing = threading.Thread(target=pair.bonds[0].close)
    failing.start()
    pair.bonds[1].leave()
    pair.bonds[1].close()
    failing.join()
    assert pair.lost == [(0, 1)], "one that fails first learns of the end that was its cause"


def test_nobody_is_lost_once_all_have_agreed_to_end(run_dir: Path) -> None:
    group = Group(run_dir, 2)
    for bond in group.bonds:
        bond.leave()
    group.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "bond"]
    assert group.lost == []


def test_standby_processes_meet_apart_until_they_are_called(run_dir: Path) -> None:
    standby.hold()
    try:
        spares = Group(run_dir, 2)
        assert spares.bonds[0].meeting.name.startswith("spares-")
        with ThreadPoolExecutor(3) as pool:
            late = [pool.submit(spares._tie, run_dir, rank, 3) for rank in range(2)]
            until((run_dir / "spares.sock").exists)
            standby.call()
            # The third has started by itself: it finds them where active ones meet.
            late.append(pool.submit(spares._tie, run_dir, 2, 3))
            bonds = [future.result(SECONDS) for future in late]
    finally:
        standby.call()
    assert [bond.meeting.name[:6] for bond in bonds] == ["group-"] * 3
    assert not list(run_dir.iterdir()) and not spares.lost
    for bond in [*spares.bonds, *bonds]:
        bond.leave()
    for bond in [*spares.bonds, *bonds]:
        bond.close()


def test_who_ended_before_all_were_there_may_come_again(run_dir: Path) -> None:
    """And what a rank 0 that was killed has left behind is in nobody's way."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(run_dir / "group.sock"))
    (run_dir / "group-of-before").touch()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(Rendezvous.join, run_dir, 0, 3, lambda rank: None)
        early = _knock(run_dir / "group.sock", 1)
        early.close()
        others = [pool.submit(Rendezvous.join, run_dir, rank, 3, lambda _: None) for rank in (1, 2)]
        bonds = [future.result(SECONDS) for future in (first, *others)]
    assert len({bond.meeting for bond in bonds}) == 1
    for bond in bonds:
        bond.close()
    assert list(run_dir.iterdir()) == []


def _knock(address: Path, rank: int) -> socket.socket:
    """A rank that comes to the door."""
    connection = socket.socket(socket.AF_UNIX)
    until(lambda: connection.connect_ex(str(address)) == 0)
    connection.sendall(bytes([rank]))
    return connection
