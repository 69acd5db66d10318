"""One SQLite file; what a journal or a store does with it is in their tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_gateway.durable.object_store import full, unavailable
from baton_gateway.durable.sqlite_file import SqliteFile

SCHEMA = "CREATE TABLE IF NOT EXISTS t (a INTEGER);"


def test_work_is_one_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        file = SqliteFile(tmp_path / "f", SCHEMA, "the file", unavailable, own_name=True)
        assert not file.is_open
        await file.run(lambda db: db.execute("INSERT INTO t VALUES (1)"))

        def half(db: object) -> None:
            db.execute("INSERT INTO t VALUES (2)")  # type: ignore[attr-defined]
            raise full()

        with pytest.raises(Unavailable):
            await file.run(half)
        rows = await file.run(lambda db: db.execute("SELECT a FROM t").fetchall())
        assert rows == [(1,)] and file.is_open and file.problem == ""
        await file.close()

    asyncio.run(main())
