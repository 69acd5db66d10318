"""Rendezvous of worker ranks on one machine, and detection of their exit.

    rank 1 --> socket in the run directory <-- rank 2
       |              | rank 0                   |
       +--------------+--------------------------+   connections that stay open and idle

The kernel closes the connections of a process that exits, even after `kill -9`. Rank 0 then exits,
and so do all other ranks: each is restarted by its supervisor and joins again.
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
from baton.process import standby
from baton.process.lifecycle import EXIT_GROUP

_TRY_SECONDS = 0.05
"""Pause between attempts to reach rank 0."""
_ENDING_SECONDS = 1.0
"""How long a rank may take to end after the first of its connections has."""

log = logger(__name__)


def _end(rank: int) -> None:
    """Exit this process after the loss of a rank; the supervisor restarts it."""
    log.error("rank %d of this group of workers ended: this one ends too", rank)
    os._exit(EXIT_GROUP)


class Rendezvous:
    """Life cycle: create with `join`, call `leave` before an orderly exit.

    Args:
        others: the connection to each rank that this one watches.
        meeting: the file for `process_groups.join`, common to all ranks.
        lost: called with the rank that has exited; by default this process exits.
    """

    def __init__(
        self,
        others: dict[int, socket.socket],
        meeting: Path,
        lost: Callable[[int], None] = _end,
    ) -> None:
        self.meeting, self._others, self._lost = meeting, others, lost
        self._loose = False
        self._watching = threading.Thread(target=self._watch, name="rendezvous", daemon=True)
        self._watching.start()

    @classmethod
    def join(
        cls, folder: Path, rank: int, size: int, lost: Callable[[int], None] = _end
    ) -> Rendezvous:
        """Connect to the other ranks in a directory private to this user; returns when all have
        joined. Standby processes join each other; one that is called before they have done so joins
        the active ones."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.info("rank %d of %d workers waits for the others", rank, size)
        if rank:
            host, name = _visit(folder.absolute(), rank)
            return cls({0: host}, folder.absolute() / name, lost)
        others = _received(folder.absolute(), size)
        meeting = folder.absolute() / f"{_kind()}-{uuid4().hex}"
        for connection in others.values():
            _tell(connection, meeting.name)
        return cls(others, meeting, lost)

    def leave(self) -> None:
        """Let other ranks exit without ending this process."""
        self._loose = True

    def close(self) -> None:
        """Close the connections. A rank that exits before this one has left is lost: what failed
        here only followed from it. The kernel may close its other connections first."""
        if not self._loose:
            self._watching.join(_ENDING_SECONDS)
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
        number, _ = poll.poll()[0]  # Peers send nothing: only a hang-up makes it readable.
        self._report(ranks[number])

    def _report(self, rank: int) -> None:
        """Report the first rank that has exited, unless this one has left."""
        if not self._loose:
            self._loose = True
            self._lost(rank)


def _kind() -> str:
    """Prefix of the files of ranks that join: standby processes and active ones have rendezvous of
    their own."""
    return "spares" if standby.held() else "group"


def _address(folder: Path) -> Path:
    """The socket on which rank 0 accepts the others."""
    return folder / f"{_kind()}.sock"


def _tidy(address: Path) -> None:
    """Remove the socket of a killed group, and the rendezvous files of groups of this kind."""
    for stale in (address, *address.parent.glob(f"{address.stem}-*")):
        stale.unlink(missing_ok=True)


def _received(folder: Path, size: int) -> dict[int, socket.socket]:
    """Rank 0: the connections of all other ranks."""
    while True:
        address = _address(folder)
        _tidy(address)
        if (others := _receive(address, size)) is not None:
            return others


def _receive(address: Path, size: int) -> dict[int, socket.socket] | None:
    """Accept all other ranks. A rank that exits meanwhile may join again. None once another
    rendezvous replaces this one."""
    others = dict[int, socket.socket]()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(address))
        door.listen(size)
        while len(others) < size - 1:
            if address != _address(address.parent):
                for other in others.values():
                    other.close()
                address.unlink()
                return None
            if not select.select([door], [], [], _TRY_SECONDS)[0]:
                continue
            connection, _ = door.accept()
            hello = connection.recv(1)
            for rank in [rank for rank, other in others.items() if _has_ended(other)]:
                others.pop(rank).close()
            if hello and not _has_ended(connection):
                others[hello[0]] = connection
            else:
                connection.close()
    address.unlink()
    return others


def _visit(folder: Path, rank: int) -> tuple[socket.socket, str]:
    """Other ranks: connect to rank 0, with retries; returns the connection and the meeting file."""
    while True:
        address, connection = _address(folder), socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(address))
            connection.sendall(bytes([rank]))
            while address == _address(folder):
                if select.select([connection], [], [], _TRY_SECONDS)[0]:
                    if name := connection.makefile().readline():
                        return connection, name.rstrip()
                    break
        except (FileNotFoundError, ConnectionError):
            pass  # Not listening yet, or exited.
        connection.close()
        time.sleep(_TRY_SECONDS)


def _tell(connection: socket.socket, name: str) -> None:
    try:
        connection.sendall(f"{name}\n".encode())
    except ConnectionError:
        log.warning("a rank ended while its group met")  # Its process is watched elsewhere.


def _has_ended(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
