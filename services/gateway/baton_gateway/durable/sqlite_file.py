"""One SQLite file, used by its own thread. Gateways of one machine may share it.

A commit survives a crash of the process but not of the machine, since it is not synced to disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from baton.errors import Unavailable
from baton.logs import logger

T = TypeVar("T")
_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""
_BUSY_SECONDS = 5.0
"""How long a write waits for another gateway's lock."""
_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT})

log = logger(__name__)


class SqliteFile:
    """Opens on first use. A corrupt file is set aside, and a new one is created."""

    def __init__(
        self,
        path: Path,
        schema: str,
        name: str,
        unavailable: Callable[[], Unavailable],
        *,
        own_name: bool,
    ) -> None:
        """
        Args:
            schema: SQL that creates the tables if they do not exist.
            name: of the content, for messages.
            unavailable: returns the error when the file cannot be used.
            own_name: set the file aside even if it has never been a database. If False, the
                operator has chosen the path, and such a file is not touched.
        """
        self._path, self._schema, self._name, self._unavailable = path, schema, name, unavailable
        self._broken = _CORRUPT | {sqlite3.SQLITE_NOTADB} if own_name else _CORRUPT
        self._inode = 0
        self.problem = ""
        """Problem to report to the operator; empty if there is none."""
        self._thread = ThreadPoolExecutor(1, "sqlite")
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has been used."""
        return self._connection is not None

    @property
    def exists(self) -> bool:
        """Whether anything has been written."""
        return self.is_open or self._path.exists()

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread, in its own transaction. Raises `Unavailable`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._attempt, work)
        except (sqlite3.Error, OSError) as error:
            log.error("%s, %s, cannot be used: %s", self._name, self._path.name, error)
            raise self._unavailable() from error

    def _attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, in a new file if this one is corrupt."""
        try:
            return self._transact(work)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in self._broken:
                raise
            self._set_aside(error)
        return self._transact(work)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename a corrupt file, unless another gateway has done so."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._inode not in (0, _inode(self._path)):
            return
        name = f"{self._path.name}.corrupt-{time.time_ns()}"
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(self._path.name + suffix).rename(
                    self._path.with_name(name + suffix)
                )
        self.problem = f"{self._name} was corrupt: it is now {name}, and a new one is in use"
        log.error("%s: %s", self.problem, error)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = _open(self._path, self._schema)
            self._inode = _inode(self._path)
        with self._connection as db:
            return work(db)


def _open(path: Path, schema: str) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        db.executescript(_PRAGMAS + schema)
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def _inode(path: Path) -> int:
    """Inode number of this path; 0 if there is no file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0
