"""A file in parts exists once they are put together, and is theirs alone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.errors import InvalidRequest, NotFound
from baton_gateway.durable.file_store import CHUNK_BYTES
from baton_gateway.durable.upload_store import UploadStore
from tests.support.gateway.batch_records import Stores


async def data(content: bytes) -> AsyncIterator[bytes]:
    yield content


def test_parts_become_a_file_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        store = UploadStore(here.file, here.files)
        whole = b"a" * (CHUNK_BYTES + 3) + b"bc"
        upload = await store.begin("o", "f", "batch", len(whole))
        second = await store.add_part(upload.id, "o", data(b"bc"))
        first = await store.add_part(upload.id, "o", data(b"a" * (CHUNK_BYTES + 3)))
        with pytest.raises(NotFound):
            await here.files.get(upload.file, "o")
        md5 = hashlib.md5(whole, usedforsecurity=False).hexdigest()
        for parts, checksum in (([first], ""), ([second, first], md5), (["part_x"], "")):
            with pytest.raises(InvalidRequest):
                await store.complete(upload.id, "o", parts, checksum)
        done, file = await store.complete(upload.id, "o", [first, second], md5)
        assert (done.status, file.num_bytes) == ("completed", len(whole))
        assert b"".join([part async for part in here.files.read(file.id)]) == whole
        assert [one.id for one in await here.files.list("o")] == [upload.file]
        with pytest.raises(InvalidRequest, match="completed"):
            await store.add_part(upload.id, "o", data(b"x"))
        left = await here.file.run(lambda db: db.execute("SELECT COUNT(*) FROM files").fetchone())
        assert left == (1,)
        await here.file.close()

    asyncio.run(main())


def test_an_upload_of_others_and_one_that_was_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        store = UploadStore(here.file, here.files)
        upload = await store.begin("o", "f", "batch", 2)
        other = await store.begin("o", "g", "batch", 2)
        part = await store.add_part(other.id, "o", data(b"ab"))
        with pytest.raises(NotFound):
            await store.add_part(upload.id, "p", data(b"x"))
        with pytest.raises(InvalidRequest, match="no part of this upload"):
            await store.complete(upload.id, "o", [part])
        assert (await store.cancel(other.id, "o")).status == "cancelled"
        with pytest.raises(InvalidRequest, match="cancelled"):
            await store.complete(other.id, "o", [part])
        left = await here.file.run(lambda db: db.execute("SELECT COUNT(*) FROM files").fetchone())
        assert left == (1,)
        await here.file.close()

    asyncio.run(main())


def test_a_part_that_is_sent_while_its_upload_ends(tmp_path: Path) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        store = UploadStore(here.file, here.files)
        upload = await store.begin("o", "f", "batch", 2)

        async def cancelled_within() -> AsyncIterator[bytes]:
            yield b"a"
            await store.cancel(upload.id, "o")
            yield b"b"

        with pytest.raises(InvalidRequest, match="The upload is cancelled"):
            await store.add_part(upload.id, "o", cancelled_within())
        await here.file.close()

    asyncio.run(main())
