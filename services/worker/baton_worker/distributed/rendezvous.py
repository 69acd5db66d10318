"""Workers of one machine that can only work together: they find each other, and end together.

    rank 1 --> socket in the run directory <-- rank 2
       |              | rank 0                   |
       +--------------+--------------------------+   connections that nobody writes to any more

The kernel closes the connection of a process that is gone, `kill -9` included. Rank 0 then ends,
and all others with it: each is restarted by its supervisor, and meets the others anew.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from baton.logs import logger
from baton.process.lifecycle import EXIT_FAULT

_TRY_SECONDS = 0.05
"""Pause before the next look for rank 0."""

log = logger(__name__)


def _end(rank: int) -> None:
    """A group of which a rank is gone cannot go on: this process ends, and is restarted."""
    log.error("rank %d of this group of workers ended: this one ends too", rank)
    os._exit(EXIT_FAULT)


class Rendezvous:
    """Life cycle: `tied` meets the other ranks, `loosen` before an end that all agreed on.

    Args:
        others: the connection to each other rank that this one watches.
        meeting: what all ranks were told to meet at, see `group.join`.
        lost: called with the rank that has ended; by default this process ends.
    """

    def __init__(
        self,
        others: dict[int, socket.socket],
        meeting: Path,
        lost: Callable[[int], None] = _end,
    ) -> None:
        self.meeting, self._others, self._lost = meeting, others, lost
        self._loose = False
        self._watching = threading.Thread(target=self._watch, name="bond", daemon=True)
        self._watching.start()

    @classmethod
    def join(
        cls, folder: Path, rank: int, size: int, lost: Callable[[int], None] = _end
    ) -> Rendezvous:
        """Meet the other ranks in a directory that only this user can enter; returns when all are
        there, or have been."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        address = folder.absolute() / "group.sock"
        log.info("rank %d of %d workers waits for the others", rank, size)
        if rank:
            host, name = _visit(address, rank)
            return cls({0: host}, address.with_name(name), lost)
        _tidy(address)
        others, meeting = _receive(address, size), address.with_name(f"group-{uuid4().hex}")
        for connection in others.values():
            _tell(connection, meeting.name)
        return cls(others, meeting, lost)

    def leave(self) -> None:
        """From now on the others may end, and this one goes on."""
        self._loose = True

    def close(self) -> None:
        """Forget the others."""
        self.leave()
        for connection in self._others.values():
            connection.shutdown(socket.SHUT_RDWR)
        self._watching.join()
        for connection in self._others.values():
            connection.close()
        self.meeting.unlink(missing_ok=True)

    def _watch(self) -> None:
        ranks = {connection.fileno(): rank for rank, connection in self._others.items()}
        poll = select.poll()
        for number in ranks:
            poll.register(number, select.POLLIN)
        number, _ = poll.poll()[0]  # Nobody writes: there is nothing to read but the end.
        if not self._loose:
            self._lost(ranks[number])


def _tidy(address: Path) -> None:
    """Remove what groups that were killed have left behind."""
    for left in (address, *address.parent.glob("group-*")):
        left.unlink(missing_ok=True)


def _receive(address: Path, size: int) -> dict[int, socket.socket]:
    """Rank 0: wait for all others. One that ended meanwhile comes again."""
    others = dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(address))
        door.listen(size)
        while len(others) < size - 1:
            connection, _ = door.accept()
            said = connection.recv(1)
            for rank in [rank for rank, other in others.items() if _has_ended(other)]:
                others.pop(rank).close()
            if said and not _has_ended(connection):
                others[said[0]] = connection
            else:
                connection.close()
    address.unlink()
    return others


def _visit(address: Path, rank: int) -> tuple[socket.socket, str]:
    """Another rank: look for rank 0 until it answers; the name of the meeting."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(address))
            connection.sendall(bytes([rank]))
            if name := connection.makefile().readline():
                return connection, name.rstrip()
        except (FileNotFoundError, ConnectionError):
            pass  # It is not there yet, or has ended.
        connection.close()
        time.sleep(_TRY_SECONDS)


def _tell(connection: socket.socket, name: str) -> None:
    try:
        connection.sendall(f"{name}\n".encode())
    except ConnectionError:
        log.warning("a rank ended while its group met")  # Its end is seen by who watches it.


def _has_ended(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
