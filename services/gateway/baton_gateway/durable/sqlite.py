"""Journal in an SQLite file. A thread writes all pending parts in one transaction.

A commit survives a crash of the process but not of the machine, since it is not synced to disk.
Gateways on one machine may share the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from baton_gateway.config import Config
from baton_gateway.durable.journal import (
    StoredStream,
    StreamExists,
    StreamFenced,
    StreamRecord,
    full,
    unavailable,
)
from baton_gateway.durable.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, ticket BLOB NOT NULL, epoch INTEGER NOT NULL,
    done INTEGER NOT NULL, size INTEGER NOT NULL, touched REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS parts (
    stream TEXT NOT NULL REFERENCES streams (id) ON DELETE CASCADE, number INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (stream, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS finished ON streams (touched) WHERE done;
CREATE INDEX IF NOT EXISTS unfinished ON streams (id) WHERE NOT done;
CREATE TABLE IF NOT EXISTS held (one INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO held SELECT 1, COALESCE(SUM(size), 0) FROM streams;
CREATE TRIGGER IF NOT EXISTS begun AFTER INSERT ON streams
    BEGIN UPDATE held SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS grown AFTER UPDATE OF size ON streams
    BEGIN UPDATE held SET bytes = bytes + NEW.size - OLD.size; END;
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON streams
    BEGIN UPDATE held SET bytes = bytes - OLD.size; END;
"""
"""`held` is the sum of all sizes. No query on a stream's path scans all streams: there may be ten
thousand, and a writer blocks the other gateways."""
_FORGOTTEN_AT_ONCE = 50
"""Most streams deleted per transaction, so that other writes are not delayed."""

CreateOutcome = Literal["created", "exists", "full"]
AppendOutcome = Literal["written", "fenced", "missing"]
"""Another epoch is current, or the stream does not exist."""


class _Append(NamedTuple):
    name: str
    epoch: int
    part: bytes
    done: bool
    written: asyncio.Future[None]


class SqliteJournal:
    """A file of about `journal_bytes` at most; streams expire after `journal_seconds`."""

    def __init__(self, config: Config) -> None:
        path = config.journal_path or config.run_dir / "journal.sqlite"
        is_default = config.journal_path is None
        self._file = SqliteFile(
            path, _SCHEMA, "the journal of streams", unavailable, own_name=is_default
        )
        self._bytes, self._seconds = config.journal_bytes, config.journal_seconds
        self._pending: list[_Append] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """See `Journal`."""
        return self._file.problem

    async def create(self, ticket: StreamRecord) -> int:
        """See `Journal`. Raises `Unavailable` when the file is full of unfinished streams."""
        data = msgspec.msgpack.encode(ticket)
        outcome = await self._file.run(lambda db: self._create(db, ticket, data))
        if outcome != "created":
            raise full() if outcome == "full" else StreamExists
        return 1

    async def append(self, name: str, epoch: int, part: bytes, *, done: bool) -> None:
        """See `Journal`. Parts that arrive during a write are written together next."""
        written = asyncio.get_running_loop().create_future()
        self._pending.append(_Append(name, epoch, part, done, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await written

    async def claim(self, name: str, owner: str) -> StoredStream | None:
        """See `Journal`."""
        return await self._file.run(lambda db: self._take(db, name, owner))

    async def prune(self) -> None:
        """See `Journal`. Does nothing while the file is not open."""
        dropped = 1
        while dropped and self._file.is_open:
            dropped = await self._file.run(self._forget)

    async def close(self) -> None:
        """See `Journal`."""
        if self._writer is not None:
            await self._writer
        await self._file.close()

    async def _write(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                good = await self._file.run(partial(_append, batch=batch))
            except Exception as error:
                _settle(batch, error)
            else:
                for item, outcome in zip(batch, good, strict=True):
                    _settle([item], self._error_of(outcome))

    def _error_of(self, outcome: AppendOutcome) -> Exception | None:
        if outcome == "missing" and self.problem:
            # The stream was in a file that was set aside; no other gateway has claimed it.
            return unavailable()
        return None if outcome == "written" else StreamFenced()

    def _create(self, db: sqlite3.Connection, ticket: StreamRecord, data: bytes) -> CreateOutcome:
        until = time.time() - self._seconds
        db.execute("DELETE FROM streams WHERE id = ? AND touched <= ?", (ticket.id, until))
        if db.execute("SELECT 1 FROM streams WHERE id = ?", (ticket.id,)).fetchone():
            return "exists"
        while _held(db) + len(data) > self._bytes:
            if not (self._forget(db) or _drop_oldest(db)):
                return "full"
        row = (ticket.id, ticket.owner, data, 1, False, len(data), time.time())
        db.execute("INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return "created"

    def _take(self, db: sqlite3.Connection, name: str, owner: str) -> StoredStream | None:
        row = db.execute(
            "UPDATE streams SET epoch = epoch + 1 WHERE id = ? AND owner = ? AND touched > ? "
            "RETURNING ticket, epoch, done",
            (name, owner, time.time() - self._seconds),
        ).fetchone()
        if row is None:
            return None
        ticket, epoch, complete = row
        rows = db.execute("SELECT data FROM parts WHERE stream = ? ORDER BY number", (name,))
        parts = tuple(data for (data,) in rows)
        return StoredStream(
            msgspec.msgpack.decode(ticket, type=StreamRecord), parts, bool(complete), epoch
        )

    def _forget(self, db: sqlite3.Connection) -> int:
        """Delete some expired streams. Returns their number."""
        until = time.time() - self._seconds
        dropped = 0
        for kind in ("done", "NOT done"):
            old = f"SELECT id FROM streams WHERE {kind} AND touched <= ? LIMIT ?"
            deleted = db.execute(
                f"DELETE FROM streams WHERE id IN ({old})", (until, _FORGOTTEN_AT_ONCE)
            )
            dropped += deleted.rowcount
        return dropped


def _held(db: sqlite3.Connection) -> int:
    """Return the bytes of all streams."""
    (num_bytes,) = db.execute("SELECT bytes FROM held").fetchone()
    return int(num_bytes)


def _drop_oldest(db: sqlite3.Connection) -> int:
    """Delete the least recently used finished stream. Returns the number of deleted streams."""
    oldest = "SELECT id FROM streams WHERE done ORDER BY touched LIMIT 1"
    return db.execute(f"DELETE FROM streams WHERE id = ({oldest})").rowcount


def _append(db: sqlite3.Connection, batch: list[_Append]) -> list[AppendOutcome]:
    """Write the items whose epoch is current."""
    now, outcomes = time.time(), list[AppendOutcome]()
    for item in batch:
        updated = db.execute(
            "UPDATE streams SET touched = ?, size = size + ?, done = ? WHERE id = ? AND epoch = ?",
            (now, len(item.part), item.done, item.name, item.epoch),
        )
        written = updated.rowcount == 1
        outcomes.append("written" if written else _why_not(db, item.name))
        if written and item.part:
            db.execute(
                "INSERT INTO parts SELECT ?, COALESCE(MAX(number), 0) + 1, ? FROM parts "
                "WHERE stream = ?",
                (item.name, item.part, item.name),
            )
    return outcomes


def _why_not(db: sqlite3.Connection, name: str) -> AppendOutcome:
    row = db.execute("SELECT 1 FROM streams WHERE id = ?", (name,)).fetchone()
    return "missing" if row is None else "fenced"


def _settle(batch: list[_Append], error: Exception | None) -> None:
    for item in batch:
        if item.written.done():
            continue
        if error is None:
            item.written.set_result(None)
        else:
            item.written.set_exception(error)
