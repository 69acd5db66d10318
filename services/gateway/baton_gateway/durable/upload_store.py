"""Uploads in parts: the file exists once its parts are joined."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from baton.errors import InvalidRequest, NotFound
from baton_gateway.durable.file_store import FileStore, StoredFile
from baton_gateway.durable.sqlite_file import SqliteFile

_COLUMNS = "id, file, filename, purpose, bytes, created, status"
_PART = "upload_part"
"""Purpose of parts, which are files that never become complete."""


class StoredUpload(msgspec.Struct, frozen=True):
    """An upload, without its parts."""

    id: str
    file: str
    """Id of the resulting file."""
    filename: str
    purpose: str
    num_bytes: int
    """Size of the complete file, as declared by the client."""
    created: float
    """Unix time in seconds."""
    status: str
    """pending, completed, cancelled"""


class UploadStore:
    """Every method raises `Unavailable` if the store is unavailable, and `NotFound` for an upload
    that `owner` does not have."""

    def __init__(self, file: SqliteFile, files: FileStore) -> None:
        self._file, self._files = file, files

    async def begin(self, owner: str, filename: str, purpose: str, num_bytes: int) -> StoredUpload:
        """Create an upload of a file of `num_bytes` bytes."""
        file = await self._files.begin(owner, filename, purpose)
        new = StoredUpload(
            f"upload_{secrets.token_hex(16)}", file, filename, purpose, num_bytes, time.time(),
            "pending",
        )  # fmt: skip
        row = (owner, *msgspec.structs.astuple(new))
        await self._file.run(
            lambda db: db.execute(
                f"INSERT INTO uploads (owner, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row
            )
        )
        return new

    async def get(self, name: str, owner: str) -> StoredUpload:
        """Return an upload."""
        row = await self._file.run(
            lambda db: db.execute(
                f"SELECT {_COLUMNS} FROM uploads WHERE id = ? AND owner = ?", (name, owner)
            ).fetchone()
        )
        if row is None:
            raise NotFound(
                f"No such Upload object: {name[:80]}", code="upload_not_found", param="id"
            )
        return StoredUpload(*row)

    async def add_part(self, name: str, owner: str, content: AsyncIterator[bytes]) -> str:
        """Store a part. Returns its id. Raises `InvalidRequest` for an upload that has ended."""
        await self._pending(name, owner)
        part = await self._files.begin(owner, name, _PART)
        try:
            async for data in content:
                await self._files.append(part, data)
        except NotFound:
            await self._pending(name, owner)  # It was completed or cancelled, which drops parts.
            raise
        except BaseException:
            await self._files.discard(part)
            raise
        return "part_" + part.removeprefix("file-")

    async def complete(
        self, name: str, owner: str, parts: Sequence[str], md5: str = ""
    ) -> tuple[StoredUpload, StoredFile]:
        """Join parts in this order. Returns the upload and its file.

        Raises `InvalidRequest` for an unknown part, for another number of bytes than declared, and
        for another checksum than `md5`.
        """
        upload = await self._pending(name, owner)
        files = ["file-" + part.removeprefix("part_") for part in parts]
        await self._file.run(lambda db: _check_parts(db, upload, files))
        if md5 and await self._md5(files) != md5.lower():
            raise InvalidRequest(
                "The parts do not have this MD5: upload them again, or leave 'md5' out.",
                code="invalid_value",
                param="md5",
            )
        file = await self._file.run(lambda db: _join(db, upload, files))
        return await self.get(name, owner), file

    async def cancel(self, name: str, owner: str) -> StoredUpload:
        """Cancel an upload and delete its parts. Raises `InvalidRequest` for one that has ended."""
        upload = await self._pending(name, owner)
        await self._file.run(lambda db: _cancel(db, upload))
        return await self.get(name, owner)

    async def _pending(self, name: str, owner: str) -> StoredUpload:
        upload = await self.get(name, owner)
        if upload.status != "pending":
            raise InvalidRequest(
                f"The upload is {upload.status}: create another one.", code="invalid_upload_state"
            )
        return upload

    async def _md5(self, files: Sequence[str]) -> str:
        digest = hashlib.md5(usedforsecurity=False)
        for file in files:
            async for data in self._files.read(file):
                digest.update(data)
        return digest.hexdigest()


def _check_parts(db: sqlite3.Connection, upload: StoredUpload, parts: Sequence[str]) -> int:
    """Return the bytes of all parts. Raises `InvalidRequest` unless all belong to the upload."""
    total = 0
    for part in parts:
        rows = db.execute(
            "SELECT bytes FROM files WHERE id = ? AND filename = ? AND purpose = ?",
            (part, upload.id, _PART),
        ).fetchone()
        if rows is None:
            raise InvalidRequest(
                f"'part_{part.removeprefix('file-')[:40]}' is no part of this upload.",
                code="invalid_value",
                param="part_ids",
            )
        total += rows[0]
    if total != upload.num_bytes:
        raise InvalidRequest(
            f"The parts have {total} bytes, and {upload.num_bytes} were announced.",
            code="invalid_value",
            param="part_ids",
        )
    return total


def _join(db: sqlite3.Connection, upload: StoredUpload, parts: Sequence[str]) -> StoredFile:
    total, chunks = _check_parts(db, upload, parts), 0
    for part in parts:
        chunks += db.execute(
            "INSERT INTO chunks SELECT ?, n + ?, data FROM chunks WHERE file = ?",
            (upload.file, chunks, part),
        ).rowcount
    _drop_parts(db, upload, "completed")
    db.execute("UPDATE files SET bytes = ?, complete = 1 WHERE id = ?", (total, upload.file))
    return StoredFile(upload.file, upload.filename, upload.purpose, total, upload.created, None)


def _cancel(db: sqlite3.Connection, upload: StoredUpload) -> None:
    _drop_parts(db, upload, "cancelled")
    db.execute("DELETE FROM files WHERE id = ?", (upload.file,))


def _drop_parts(db: sqlite3.Connection, upload: StoredUpload, status: str) -> None:
    db.execute("DELETE FROM files WHERE filename = ? AND purpose = ?", (upload.id, _PART))
    db.execute("UPDATE uploads SET status = ? WHERE id = ?", (status, upload.id))
