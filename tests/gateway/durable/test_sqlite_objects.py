"""The SQLite store: its place and its size."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.object_store import StoredObject
from baton_gateway.durable.sqlite_objects import SqliteObjects


def test_old_objects_make_room_and_those_that_are_due_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteObjects(Config(run_dir=tmp_path, store_bytes=4096))
        for number in range(3):
            await store.put(StoredObject(f"resp_{number}", "me", b"x" * 1000))
        await store.put(StoredObject("resp_3", "me", b"x" * 1000))
        assert await store.get("resp_0", "me") is None, "the one that was changed first"
        assert await store.get("resp_1", "me") is not None
        for number in range(3):
            await store.put(StoredObject(f"job_{number}", "me", b"x" * 1000, due=1e12))
        with pytest.raises(Unavailable) as caught:
            await store.put(StoredObject("resp_4", "me", b"x" * 1000))
        assert caught.value.code == "store_full"
        assert await store.get("resp_4", "me") is None, "nothing of it is left"
        assert await store.get("job_0", "me") is not None
        await store.close()
        path = tmp_path / "store.sqlite"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    asyncio.run(main())


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "store"
        path.write_bytes(b"this is not a database" * 100)
        store = SqliteObjects(Config(store_path=path))
        with pytest.raises(Unavailable) as caught:
            await store.get("resp_1", "me")
        assert caught.value.code == "store_unavailable"
        await store.close()

    asyncio.run(main())
