"""Store of objects in an SQLite file, for the gateways of one machine."""

from __future__ import annotations

import sqlite3
import time

from baton_gateway.config import Config
from baton_gateway.durable.object_store import StoredObject, full, unavailable
from baton_gateway.durable.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, data BLOB NOT NULL,
    version INTEGER NOT NULL, due REAL NOT NULL, size INTEGER NOT NULL, touched REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS idle ON objects (touched) WHERE due = 0;
CREATE INDEX IF NOT EXISTS pending ON objects (kind, due) WHERE due > 0;
CREATE TABLE IF NOT EXISTS held (one INTEGER PRIMARY KEY, bytes INTEGER NOT NULL);
INSERT OR IGNORE INTO held VALUES (1, 0);
CREATE TRIGGER IF NOT EXISTS begun AFTER INSERT ON objects
    BEGIN UPDATE held SET bytes = bytes + NEW.size; END;
CREATE TRIGGER IF NOT EXISTS grown AFTER UPDATE OF size ON objects
    BEGIN UPDATE held SET bytes = bytes + NEW.size - OLD.size; END;
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON objects
    BEGIN UPDATE held SET bytes = bytes - OLD.size; END;
"""
"""`held` is the sum of all sizes."""
_OVERHEAD = 200
"""Approximate bytes of an object besides its data."""
_AT_ONCE = 50
"""Most objects deleted or returned per transaction, so that other writes are not delayed."""
_COLUMNS = "id, owner, data, version, due"


class SqliteObjects:
    """A file of about `store_bytes` at most; objects expire `store_seconds` after their last
    change, unless they are due."""

    def __init__(self, config: Config) -> None:
        path = config.store_path or config.run_dir / "store.sqlite"
        is_default = config.store_path is None
        self._file = SqliteFile(
            path, _SCHEMA, "the store of responses", unavailable, own_name=is_default
        )
        self._bytes, self._seconds = config.store_bytes, config.store_seconds

    @property
    def problem(self) -> str:
        """See `ObjectStore`."""
        return self._file.problem

    async def get(self, name: str, owner: str) -> StoredObject | None:
        """See `ObjectStore`."""
        return await self._file.run(lambda db: self._get(db, name, owner))

    async def put(self, new: StoredObject) -> bool:
        """See `ObjectStore`."""
        return await self._file.run(lambda db: self._put(db, new))

    async def delete(self, name: str, owner: str) -> bool:
        """See `ObjectStore`."""
        return await self._file.run(
            lambda db: (
                db.execute("DELETE FROM objects WHERE id = ? AND owner = ?", (name, owner)).rowcount
                == 1
            )
        )

    async def take_due(self, kind: str, seconds: float) -> list[StoredObject]:
        """See `ObjectStore`."""
        if not self._file.exists:
            return []
        return await self._file.run(lambda db: _take_due(db, kind, seconds))

    async def prune(self) -> None:
        """See `ObjectStore`. Does nothing while the file is not open."""
        dropped = 1
        while dropped and self._file.is_open:
            dropped = await self._file.run(self._forget)

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self._file.close()

    def _get(self, db: sqlite3.Connection, name: str, owner: str) -> StoredObject | None:
        row = db.execute(
            f"SELECT {_COLUMNS} FROM objects WHERE id = ? AND owner = ? "
            "AND (due > 0 OR touched > ?)",
            (name, owner, time.time() - self._seconds),
        ).fetchone()
        return None if row is None else StoredObject(*row)

    def _put(self, db: sqlite3.Connection, new: StoredObject) -> bool:
        size = len(new.data) + _OVERHEAD
        values = (new.data, new.due, size, time.time())
        if new.version:
            changed = db.execute(
                "UPDATE objects SET version = version + 1, data = ?, due = ?, size = ?, "
                "touched = ? WHERE id = ? AND version = ?",
                (*values, new.id, new.version),
            )
        else:
            changed = db.execute(
                "INSERT OR IGNORE INTO objects (data, due, size, touched, id, kind, owner, "
                "version) VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
                (*values, new.id, new.kind, new.owner),
            )
        self._make_room(db, new.id)
        return changed.rowcount == 1

    def _make_room(self, db: sqlite3.Connection, new: str) -> None:
        """Delete the oldest objects except the `new` one while the file is too large. Raises
        `Unavailable`, which rolls the change back, if that is not enough."""
        while db.execute("SELECT bytes FROM held").fetchone()[0] > self._bytes:
            oldest = "SELECT id FROM objects WHERE due = 0 AND id != ? ORDER BY touched LIMIT 1"
            if not db.execute(f"DELETE FROM objects WHERE id = ({oldest})", (new,)).rowcount:
                raise full()

    def _forget(self, db: sqlite3.Connection) -> int:
        """Delete some expired objects. Returns their number."""
        old = "SELECT id FROM objects WHERE due = 0 AND touched <= ? LIMIT ?"
        until = time.time() - self._seconds
        return db.execute(f"DELETE FROM objects WHERE id IN ({old})", (until, _AT_ONCE)).rowcount


def _take_due(db: sqlite3.Connection, kind: str, seconds: float) -> list[StoredObject]:
    now = time.time()
    some = "SELECT id FROM objects WHERE kind = ? AND due > 0 AND due <= ? ORDER BY due LIMIT ?"
    rows = db.execute(
        f"UPDATE objects SET due = ?, version = version + 1 WHERE id IN ({some}) "
        f"RETURNING {_COLUMNS}",
        (now + seconds, kind, now, _AT_ONCE),
    ).fetchall()
    return [StoredObject(*row) for row in rows]
