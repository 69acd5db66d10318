"""Files uploaded by clients or written by batches."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial

import msgspec

from baton.errors import InvalidRequest, NotFound
from baton_gateway.durable.sqlite_file import SqliteFile

CHUNK_BYTES = 1024 * 1024
_COLUMNS = "id, filename, purpose, bytes, created, expires"


class StoredFile(msgspec.Struct, frozen=True):
    """A file, without its content."""

    id: str
    filename: str
    purpose: str
    num_bytes: int
    created: float
    """Unix time in seconds."""
    expires: float | None = None


class FileStore:
    """Every method raises `Unavailable` when the store is unavailable.

    A file is visible to its owner only, from its completion to its expiry.
    """

    def __init__(self, file: SqliteFile, limit: int) -> None:
        """`limit`: maximum bytes of all files."""
        self._file, self._limit = file, limit

    async def begin(
        self, owner: str, filename: str, purpose: str, expires: float | None = None
    ) -> str:
        """Create a file. Returns its id. It is not visible before `finish`."""
        name = f"file-{secrets.token_hex(16)}"
        row = (name, owner, filename, purpose, 0, time.time(), expires, 0)
        await self._file.run(
            lambda db: db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        )
        return name

    async def append(self, name: str, data: bytes) -> None:
        """Write more of a file. Raises `NotFound` for one that was deleted meanwhile, and
        `InvalidRequest` when the store is full."""
        await self._file.run(lambda db: self._append(db, name, data))

    async def finish(self, name: str) -> StoredFile:
        """Complete a file, and return it."""
        return await self._file.run(lambda db: _finish(db, name))

    async def get(self, name: str, owner: str) -> StoredFile:
        """Return a file. Raises `NotFound`."""
        row = await self._file.run(
            lambda db: db.execute(
                f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ? AND complete AND "
                "(expires IS NULL OR expires > ?)",
                (name, owner, time.time()),
            ).fetchone()
        )
        if row is None:
            raise _missing(name)
        return StoredFile(*row)

    async def list(self, owner: str, purpose: str | None = None) -> list[StoredFile]:
        """Return the files of an owner in chronological order."""
        rows = await self._file.run(
            lambda db: db.execute(
                f"SELECT {_COLUMNS} FROM files WHERE owner = ? AND complete AND "
                "(expires IS NULL OR expires > ?) AND (? IS NULL OR purpose = ?) "
                "ORDER BY created, id",
                (owner, time.time(), purpose, purpose),
            ).fetchall()
        )
        return [StoredFile(*row) for row in rows]

    async def delete(self, name: str, owner: str) -> None:
        """Delete a file. Raises `NotFound`."""
        await self.get(name, owner)
        await self.discard(name)

    async def discard(self, name: str) -> None:
        """Delete a file of any owner, complete or not, if it exists."""
        await self._file.run(lambda db: db.execute("DELETE FROM files WHERE id = ?", (name,)))

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the content of a file."""
        number = 0
        while (data := await self._file.run(partial(_chunk, name=name, number=number))) is not None:
            yield data
            number += 1

    async def content(self, name: str, owner: str, most: int) -> bytes:
        """Return the content of a file of an owner. Raises `NotFound`, or `InvalidRequest` if it
        has more than `most` bytes."""
        if (await self.get(name, owner)).num_bytes > most:
            message = f"The file {name} has more than the {most} bytes that a prompt takes."
            raise InvalidRequest(message, code="file_too_large")
        return b"".join([data async for data in self.read(name)])

    async def prune(self) -> None:
        """Delete expired files, and incomplete ones that are older than a day."""
        now = time.time()
        await self._file.run(
            lambda db: db.execute(
                "DELETE FROM files WHERE expires <= ? OR (NOT complete AND created <= ?)",
                (now, now - 86_400),
            )
        )

    def _append(self, db: sqlite3.Connection, name: str, data: bytes) -> None:
        if db.execute("SELECT 1 FROM files WHERE id = ?", (name,)).fetchone() is None:
            raise _missing(name)
        (num_bytes,) = db.execute("SELECT COALESCE(SUM(bytes), 0) FROM files").fetchone()
        if num_bytes + len(data) > self._limit:
            raise InvalidRequest(
                "The store of files is full. Delete some that you no longer need.",
                code="store_full",
                status=413,
            )
        write_chunks(db, name, [data])


def write_chunks(db: sqlite3.Connection, name: str, parts: Iterable[bytes]) -> None:
    """Append parts to a file, in the caller's transaction."""
    (first,) = db.execute("SELECT COUNT(*) FROM chunks WHERE file = ?", (name,)).fetchone()
    for number, part in enumerate(_pieces(parts), start=first):
        db.execute("INSERT INTO chunks VALUES (?, ?, ?)", (name, number, part))
        db.execute("UPDATE files SET bytes = bytes + ? WHERE id = ?", (len(part), name))


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts and cut large ones."""
    buffer = bytearray()
    for part in parts:
        buffer += part
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def _finish(db: sqlite3.Connection, name: str) -> StoredFile:
    db.execute("UPDATE files SET complete = 1 WHERE id = ?", (name,))
    return StoredFile(*db.execute(f"SELECT {_COLUMNS} FROM files WHERE id = ?", (name,)).fetchone())


def _chunk(db: sqlite3.Connection, name: str, number: int) -> bytes | None:
    row = db.execute("SELECT data FROM chunks WHERE file = ? AND n = ?", (name, number)).fetchone()
    return None if row is None else row[0]


def _missing(name: str) -> NotFound:
    return NotFound(f"No such File object: {name[:80]}", code="file_not_found", param="id")
