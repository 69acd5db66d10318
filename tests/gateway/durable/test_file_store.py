"""Files belong to whoever uploaded them, and exist once they are whole."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from baton.errors import InvalidRequest, NotFound
from baton_gateway.config import Config
from baton_gateway.durable.batch_file import open_batch_file
from baton_gateway.durable.file_store import CHUNK_BYTES, FileStore


def test_files(tmp_path: Path) -> None:
    async def main() -> None:
        file = open_batch_file(Config(run_dir=tmp_path))
        store = FileStore(file, 10 * CHUNK_BYTES)
        name = await store.begin("a", "in.jsonl", "batch")
        content = b"x" * (CHUNK_BYTES + 5)
        await store.append(name, content)
        await store.append(name, b"yz")
        with pytest.raises(NotFound):
            await store.get(name, "a")
        assert (await store.finish(name)).num_bytes == len(content) + 2
        assert b"".join([part async for part in store.read(name)]) == content + b"yz"
        assert [one.id for one in await store.list("a")] == [name]
        assert await store.list("b") == await store.list("a", "user_data") == []
        assert await store.content(name, "a", len(content) + 2) == content + b"yz"
        with pytest.raises(InvalidRequest, match="that a prompt takes"):
            await store.content(name, "a", len(content))
        others = (store.get(name, "b"), store.delete(name, "b"), store.content(name, "b", 10**9))
        for attempt in others:
            with pytest.raises(NotFound):
                await attempt
        await store.delete(name, "a")
        assert [part async for part in store.read(name)] == []
        await file.close()

    asyncio.run(main())


def test_a_store_that_is_full_takes_nothing_more(tmp_path: Path) -> None:
    async def main() -> None:
        file = open_batch_file(Config(run_dir=tmp_path))
        store = FileStore(file, 100)
        name = await store.begin("a", "f", "batch")
        await store.append(name, b"x" * 100)
        with pytest.raises(InvalidRequest, match="full") as refused:
            await store.append(name, b"x")
        assert refused.value.status == 413
        await store.discard(name)
        await store.append(await store.begin("a", "f", "batch"), b"x" * 100)
        await file.close()

    asyncio.run(main())


def test_files_expire(tmp_path: Path) -> None:
    async def main() -> None:
        file = open_batch_file(Config(run_dir=tmp_path))
        store = FileStore(file, 100)
        for expires in (time.time() - 1, time.time() + 60):
            await store.finish(await store.begin("a", "f", "batch", expires))
        assert len(await store.list("a")) == 1
        await store.prune()
        left = await file.run(lambda db: db.execute("SELECT COUNT(*) FROM files").fetchone())
        assert left == (1,)
        await file.close()

    asyncio.run(main())
