"""Batches and the results of their lines.

A line's result is written once: a second write has no effect. A batch is run by the gateway that
has its lease; when a lease expires, another gateway continues with the lines without a result.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from baton.errors import NotFound
from baton_gateway.durable.batch_record import MESSAGES, UNRUN, Batch, RequestCounts
from baton_gateway.durable.file_store import write_chunks
from baton_gateway.durable.sqlite_file import SqliteFile

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that have not ended."""
_OPEN = ", ".join(f"'{status}'" for status in OPEN)


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch, and the key that is charged for it."""

    batch: Batch
    owner: str
    key: str
    """Name of the API key that created it; empty when no key is needed."""
    num_unrun: int = 0
    """Number of lines that were not run because the batch was cancelled or expired, once it has
    ended."""


class Line(NamedTuple):
    """One request of a batch."""

    number: int
    """0-based, in the order of the input file."""
    custom_id: str
    body: bytes
    """JSON object."""


class BatchStore:
    """Every method raises `Unavailable` when the store is unavailable."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @property
    def is_used(self) -> bool:
        """Whether any file or batch was ever stored. If not, there is nothing to poll for."""
        return self._file.exists

    async def add(self, new: StoredBatch, lines: Sequence[Line] = ()) -> None:
        """Store a batch without a lease, with its lines if they are known."""
        await self._file.run(lambda db: _add(db, new, lines))

    async def get(self, name: str, owner: str) -> Batch:
        """Return a batch with its counts. Raises `NotFound`."""
        stored = await self._file.run(lambda db: _of_owner(db, name, owner))
        if stored is None:
            raise _missing(name)
        return stored.batch

    async def stored(self, name: str, owner: str, *, of_messages: bool) -> StoredBatch:
        """Return a batch of messages, or one of another endpoint. Raises `NotFound`."""
        stored = await self._file.run(lambda db: _of_owner(db, name, owner))
        if stored is None or (stored.batch.endpoint == MESSAGES) != of_messages:
            raise _missing(name)
        return stored

    async def delete(self, name: str) -> None:
        """Delete a batch that has ended, and the files of its results."""
        await self._file.run(lambda db: _delete(db, name))

    async def change(self, name: str, changed: Callable[[Batch], Batch]) -> Batch:
        """Replace a batch by a function of it. Returns the new one."""
        return await self._file.run(lambda db: _change(db, name, changed))

    async def take(self, holder: str, seconds: float) -> StoredBatch | None:
        """Return a batch that has not ended and has no lease, and lease it for `seconds`."""
        return await self._file.run(lambda db: _take(db, holder, seconds))

    async def hold(self, name: str, holder: str, seconds: float) -> bool:
        """Renew the lease of a batch. Returns whether `holder` still has it."""
        changed = await self._file.run(
            lambda db: db.execute(
                "UPDATE batches SET held_until = ? WHERE id = ? AND holder = ?",
                (time.time() + seconds, name, holder),
            )
        )
        return changed.rowcount == 1

    async def add_lines(self, name: str, lines: Sequence[Line]) -> None:
        """Store lines of a batch; existing ones are unchanged."""
        await self._file.run(lambda db: _add_lines(db, name, lines))

    async def pending(self, name: str, after: int, most: int) -> list[Line]:
        """Return up to `most` lines without a result after line `after`."""
        rows = await self._file.run(
            lambda db: db.execute(
                "SELECT n, custom_id, body FROM lines WHERE batch = ? AND n > ? AND result IS NULL "
                "ORDER BY n LIMIT ?",
                (name, after, most),
            ).fetchall()
        )
        return [Line(*row) for row in rows]

    async def answer(self, name: str, number: int, result: bytes, *, ok: bool) -> None:
        """Store the result of a line, a JSON object, unless it has one."""
        await self._file.run(
            lambda db: db.execute(
                "UPDATE lines SET result = ?, ok = ? WHERE batch = ? AND n = ? AND result IS NULL",
                (result, ok, name, number),
            )
        )

    async def write_results(
        self, name: str, status: str, expires: float | None
    ) -> tuple[str | None, str | None]:
        """Write the output file and the error file of a batch and end it with a status, in one
        transaction. Returns the files' ids, None for a file without lines."""
        return await self._file.run(lambda db: _write_results(db, name, status, expires))

    async def stored_list(self, owner: str) -> list[StoredBatch]:
        """Return the batches of an owner in chronological order."""
        return await self._file.run(lambda db: _listed(db, owner))


def _encoded(batch: StoredBatch) -> bytes:
    return msgspec.json.encode(batch)


def _decoded(data: bytes) -> StoredBatch:
    return msgspec.json.decode(data, type=StoredBatch)


def _add(db: sqlite3.Connection, new: StoredBatch, lines: Sequence[Line]) -> None:
    row = (new.batch.id, new.owner, time.time(), new.batch.status, _encoded(new))
    db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, '', 0)", row)
    _add_lines(db, new.batch.id, lines)


def _add_lines(db: sqlite3.Connection, name: str, lines: Sequence[Line]) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO lines (batch, n, custom_id, body) VALUES (?, ?, ?, ?)",
        [(name, *line) for line in lines],
    )


def _of_owner(db: sqlite3.Connection, name: str, owner: str) -> StoredBatch | None:
    row = db.execute(
        "SELECT data FROM batches WHERE id = ? AND owner = ?", (name, owner)
    ).fetchone()
    return None if row is None else _with_counts(db, _decoded(row[0]))


def _listed(db: sqlite3.Connection, owner: str) -> list[StoredBatch]:
    rows = db.execute("SELECT data FROM batches WHERE owner = ? ORDER BY created, id", (owner,))
    return [_with_counts(db, _decoded(data)) for (data,) in rows.fetchall()]


def _with_counts(db: sqlite3.Connection, stored: StoredBatch) -> StoredBatch:
    return msgspec.structs.replace(stored, batch=_counted(db, stored.batch))


def _delete(db: sqlite3.Connection, name: str) -> None:
    (data,) = db.execute("SELECT data FROM batches WHERE id = ?", (name,)).fetchone()
    batch = _decoded(data).batch
    for file in (batch.output_file_id, batch.error_file_id):
        db.execute("DELETE FROM files WHERE id = ?", (file,))
    db.execute("DELETE FROM batches WHERE id = ?", (name,))


def _counted(db: sqlite3.Connection, batch: Batch) -> Batch:
    """The batch with the counts of its lines."""
    total, num_done, num_successful = db.execute(
        "SELECT COUNT(*), COUNT(result), COALESCE(SUM(ok), 0) FROM lines WHERE batch = ?",
        (batch.id,),
    ).fetchone()
    if not total:
        return batch
    counts = RequestCounts(total=total, completed=num_successful, failed=num_done - num_successful)
    return msgspec.structs.replace(batch, request_counts=counts)


def _change(db: sqlite3.Connection, name: str, changed: Callable[[Batch], Batch]) -> Batch:
    (data,) = db.execute("SELECT data FROM batches WHERE id = ?", (name,)).fetchone()
    stored = _decoded(data)
    new = msgspec.structs.replace(stored, batch=changed(stored.batch))
    db.execute(
        "UPDATE batches SET data = ?, status = ? WHERE id = ?",
        (_encoded(new), new.batch.status, name),
    )
    return _counted(db, new.batch)


def _take(db: sqlite3.Connection, holder: str, seconds: float) -> StoredBatch | None:
    now = time.time()
    row = db.execute(
        f"UPDATE batches SET holder = ?, held_until = ? WHERE id = (SELECT id FROM batches WHERE "
        f"status IN ({_OPEN}) AND held_until <= ? ORDER BY created LIMIT 1) RETURNING data",
        (holder, now + seconds, now),
    ).fetchone()
    return None if row is None else _decoded(row[0])


def _write_results(
    db: sqlite3.Connection, name: str, status: str, expires: float | None
) -> tuple[str | None, str | None]:
    (data,) = db.execute("SELECT data FROM batches WHERE id = ?", (name,)).fetchone()
    stored = _decoded(data)
    output, errors = (_result_file(db, stored, ok, expires) for ok in (True, False))

    def ended(batch: Batch) -> Batch:
        counted = _counted(db, batch)
        times: dict[str, Any] = {f"{status}_at": int(time.time())}
        return msgspec.structs.replace(
            counted, status=status, output_file_id=output, error_file_id=errors, **times
        )

    _count_unrun(db, name)
    _change(db, name, ended)
    db.execute("DELETE FROM lines WHERE batch = ?", (name,))
    return output, errors


def _count_unrun(db: sqlite3.Connection, name: str) -> None:
    (data,) = db.execute("SELECT data FROM batches WHERE id = ?", (name,)).fetchone()
    (number,) = db.execute(
        "SELECT COUNT(*) FROM lines WHERE batch = ? AND ok = 0 AND "
        "json_extract(CAST(result AS TEXT), '$.error.code') IN (?, ?)",
        (name, *UNRUN),
    ).fetchone()
    stored = msgspec.structs.replace(_decoded(data), num_unrun=number)
    db.execute("UPDATE batches SET data = ? WHERE id = ?", (_encoded(stored), name))


def _result_file(
    db: sqlite3.Connection, stored: StoredBatch, ok: bool, expires: float | None
) -> str | None:
    """Write the successful results, or the others."""
    rows = db.execute(
        "SELECT result FROM lines WHERE batch = ? AND result IS NOT NULL AND ok = ? ORDER BY n",
        (stored.batch.id, ok),
    )
    first = rows.fetchone()
    if first is None:
        return None
    name = f"file-{secrets.token_hex(16)}"
    filename = f"{stored.batch.id}_{'output' if ok else 'error'}.jsonl"
    row = (name, stored.owner, filename, "batch_output", 0, time.time(), expires, 1)
    db.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    write_chunks(db, name, _json_lines(first, rows))
    return name


def _json_lines(first: tuple[bytes], rest: sqlite3.Cursor) -> Iterator[bytes]:
    yield first[0] + b"\n"
    for (result,) in rest:
        yield result + b"\n"


def _missing(name: str) -> NotFound:
    return NotFound(f"No such Batch object: {name[:80]}", code="batch_not_found", param="id")
