"""A line has one result, a batch has one gateway that runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from baton.errors import NotFound
from baton_gateway.durable.batch_record import RequestCounts
from baton_gateway.durable.batch_store import Line
from tests.support.gateway.batch_records import Stores, stored

LINES = [Line(n, f"c{n}", b"{}") for n in range(4)]


def test_results_are_written_once(tmp_path: Path) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        await here.batches.add(stored("batch_1", "file-1"))
        for _ in range(2):
            await here.batches.add_lines("batch_1", LINES)
        await here.batches.answer("batch_1", 2, b'{"a":1}', ok=True)
        await here.batches.answer("batch_1", 2, b'{"a":2}', ok=False)
        await here.batches.answer("batch_1", 0, b'{"a":3}', ok=False)
        assert [x.number for x in await here.batches.pending("batch_1", -1, 9)] == [1, 3]
        assert [x.number for x in await here.batches.pending("batch_1", 1, 9)] == [3]
        counts = (await here.batches.get("batch_1", "")).request_counts
        assert counts == RequestCounts(4, 1, 1)
        output, errors = await here.batches.write_results("batch_1", "completed", None)
        assert await here.download(output) == [{"a": 1}]
        assert await here.download(errors) == [{"a": 3}]
        batch = await here.batches.get("batch_1", "")
        assert (batch.status, batch.output_file_id) == ("completed", output)
        assert batch.request_counts == counts and batch.completed_at is not None
        with pytest.raises(NotFound):
            await here.batches.get("batch_1", "another")
        assert [s.batch.id for s in await here.batches.stored_list("")] == ["batch_1"]
        await here.file.close()

    asyncio.run(main())


def test_a_batch_is_run_by_one_gateway_until_it_is_gone(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        await here.batches.add(stored("batch_1", "file-1"))
        first = await here.batches.take("a", 20)
        assert first is not None and first.batch.id == "batch_1"
        assert await here.batches.take("b", 60) is None
        assert await here.batches.hold("batch_1", "a", 20)
        later(25.0)
        assert await here.batches.take("b", 60) is not None
        assert not await here.batches.hold("batch_1", "a", 60)
        await here.batches.change(
            "batch_1", lambda b: structs.replace(b, status="failed", failed_at=int(time.time()))
        )
        assert await here.batches.take("c", 60) is None
        await here.file.close()

    asyncio.run(main())
