"""The SQLite file of uploaded files and batches."""

from __future__ import annotations

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, created REAL NOT NULL, expires REAL, complete INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS own_files ON files (owner, created);
CREATE TABLE IF NOT EXISTS chunks (
    file TEXT NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    n INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (file, n)
);
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, file TEXT NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, created REAL NOT NULL, status TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, status TEXT NOT NULL,
    data BLOB NOT NULL, holder TEXT NOT NULL, held_until REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS own_batches ON batches (owner, created);
CREATE INDEX IF NOT EXISTS open_batches ON batches (created)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT NOT NULL REFERENCES batches (id) ON DELETE CASCADE,
    n INTEGER NOT NULL, custom_id TEXT NOT NULL, body BLOB NOT NULL, result BLOB, ok INTEGER,
    PRIMARY KEY (batch, n)
);
CREATE INDEX IF NOT EXISTS pending ON lines (batch, n) WHERE result IS NULL;
"""


def open_batch_file(config: Config) -> SqliteFile:
    """Return the configured file; it is opened on first use."""
    path = config.batch_path or config.run_dir / "batches.sqlite"
    return SqliteFile(
        path,
        _SCHEMA,
        "the store of files and batches",
        _unavailable,
        own_name=config.batch_path is None,
    )


def _unavailable() -> Unavailable:
    return Unavailable(
        "The store of files and batches does not answer. Try again later.",
        code="store_unavailable",
        retry_after=2,
    )
