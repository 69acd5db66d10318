"""The journal in a file of SQLite, written by a thread, one transaction for all that waits.

A commit survives the death of the process, not that of the machine: it is not forced to the disk.
Gateways of one machine may share the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from baton.logs import logger
from baton_gateway.config import Config
from baton_gateway.journal.base import Kept, Superseded, Ticket, full, lost

T = TypeVar("T")
_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, ticket BLOB NOT NULL, epoch INTEGER NOT NULL,
    done INTEGER NOT NULL, size INTEGER NOT NULL, touched REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS parts (
    stream TEXT NOT NULL REFERENCES streams (id) ON DELETE CASCADE, number INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (stream, number)
) WITHOUT ROWID;
"""
_BUSY_SECONDS = 5.0
"""How long a write waits for another gateway's."""

log = logger(__name__)


class _Append(NamedTuple):
    name: str
    epoch: int
    part: bytes
    done: bool
    written: asyncio.Future[None]


class SqliteJournal:
    """A file of at most about `journal_bytes`, whose streams live `journal_seconds`."""

    def __init__(self, config: Config) -> None:
        self._path = config.journal_path or config.run_dir / "journal.sqlite"
        self._bytes, self._seconds = config.journal_bytes, config.journal_seconds
        self._thread = ThreadPoolExecutor(1, "journal")
        self._connection: sqlite3.Connection | None = None
        self._pending: list[_Append] = []
        self._writer: asyncio.Task[None] | None = None

    async def create(self, ticket: Ticket) -> int:
        """See `Journal`. Raises `Unavailable` when the file is full of unfinished streams."""
        data = msgspec.msgpack.encode(ticket)
        if not await self._run(lambda db: self._create(db, ticket, data)):
            raise full()
        return 1

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """See `Journal`. Parts that come while the thread writes are written together next."""
        written = asyncio.get_running_loop().create_future()
        self._pending.append(_Append(name, epoch, part, done, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await written

    async def take(self, name: str, owner: str) -> Kept | None:
        """See `Journal`."""
        return await self._run(lambda db: self._take(db, name, owner))

    async def prune(self) -> None:
        """See `Journal`. Does not open the file for it."""
        if self._connection is not None:
            await self._run(self._forget)

    async def close(self) -> None:
        """See `Journal`."""
        if self._writer is not None:
            await self._writer
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                good = await self._run(partial(_append, batch=batch))
            except Exception as error:
                _settle(batch, error)
            else:
                for item, fits in zip(batch, good, strict=True):
                    _settle([item], None if fits else Superseded())

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in a transaction of its own, in the thread."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._transact, work)
        except (sqlite3.Error, OSError) as error:
            log.error("the journal %s cannot be used: %s", self._path.name, error)
            raise lost() from error

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = _open(self._path)
        with self._connection as db:
            return work(db)

    def _create(self, db: sqlite3.Connection, ticket: Ticket, data: bytes) -> bool:
        self._forget(db)
        (held,) = db.execute("SELECT COALESCE(SUM(size), 0) FROM streams").fetchone()
        old = db.execute("SELECT id, size FROM streams WHERE done ORDER BY touched").fetchall()
        for name, size in old:
            if held + len(data) <= self._bytes:
                break
            db.execute("DELETE FROM streams WHERE id = ?", (name,))
            held -= size
        if held + len(data) > self._bytes:
            return False
        row = (ticket.id, ticket.owner, data, 1, False, len(data), time.time())
        db.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return True

    def _take(self, db: sqlite3.Connection, name: str, owner: str) -> Kept | None:
        found = db.execute(
            "UPDATE streams SET epoch = epoch + 1 WHERE id = ? AND owner = ? AND touched > ? "
            "RETURNING ticket, epoch, done",
            (name, owner, time.time() - self._seconds),
        ).fetchone()
        if found is None:
            return None
        ticket, epoch, done = found
        rows = db.execute("SELECT data FROM parts WHERE stream = ? ORDER BY number", (name,))
        parts = tuple(data for (data,) in rows)
        return Kept(msgspec.msgpack.decode(ticket, type=Ticket), parts, bool(done), epoch)

    def _forget(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM streams WHERE touched <= ?", (time.time() - self._seconds,))


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    db.executescript(_SCHEMA)
    db.execute("PRAGMA foreign_keys = ON")
    return db


def _append(db: sqlite3.Connection, batch: list[_Append]) -> list[bool]:
    """Per item, whether its epoch was the current one."""
    now, good = time.time(), []
    for item in batch:
        found = db.execute(
            "UPDATE streams SET touched = ?, size = size + ?, done = ? WHERE id = ? AND epoch = ?",
            (now, len(item.part), item.done, item.name, item.epoch),
        )
        good.append(found.rowcount == 1)
        if good[-1] and item.part:
            db.execute(
                "INSERT INTO parts SELECT ?, COALESCE(MAX(number), 0) + 1, ? FROM parts "
                "WHERE stream = ?",
                (item.name, item.part, item.name),
            )
    return good


def _settle(batch: list[_Append], error: Exception | None) -> None:
    for item in batch:
        if item.written.done():
            continue
        if error is None:
            item.written.set_result(None)
        else:
            item.written.set_exception(error)
