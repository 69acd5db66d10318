"""Batches come to their end whatever happens to the gateways that run them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from msgspec import structs

from baton_gateway.durable.batch_record import Batch, RequestCounts
from tests.support.gateway.batch_records import Stores, line, stored
from tests.support.gateway.batch_runners import Echo, ended, ids, runner


def test_a_batch_runs_to_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        here, app = Stores(tmp_path), Echo(0.01)
        texts = ["a", "bad", "busy", *map(str, range(20))]
        name = await here.upload(b"".join(line(f"c-{t}", text=t) for t in texts))
        await here.batches.add(stored("batch_1", name))
        work = runner(here, app, max_batch_requests=3)
        work.start()
        batch = await ended(here)
        assert (batch.status, batch.request_counts) == ("completed", RequestCounts(23, 22, 1))
        good = await here.download(batch.output_file_id)
        assert ids(good) == [f"c-{t}" for t in texts if t != "bad"]
        assert ids(await here.download(batch.error_file_id)) == ["c-bad"]
        assert app.busiest == 3 and app.seen["busy"] == 2
        await work.close()
        await here.file.close()

    asyncio.run(main())


def test_a_batch_that_cannot_run_fails_with_reasons(tmp_path: Path) -> None:
    async def main() -> None:
        here = Stores(tmp_path)
        name = await here.upload(b"no json\n")
        await here.batches.add(stored("batch_1", name))
        await here.batches.add(stored("batch_2", "file-gone"))
        work = runner(here, Echo())
        work.start()
        batch = await ended(here)
        assert batch.errors is not None and batch.errors.data[0].line == 1
        gone = await ended(here, "batch_2")
        assert gone.errors is not None and "file-gone" in gone.errors.data[0].message
        await work.close()
        await here.file.close()

    asyncio.run(main())


def test_a_batch_is_cancelled_or_runs_out_of_time(tmp_path: Path) -> None:
    async def main() -> None:
        here, app = Stores(tmp_path), Echo(0.05)
        name = await here.upload(b"".join(line(str(n), text=str(n)) for n in range(200)))
        await here.batches.add(stored("batch_1", name))
        await here.batches.add(stored("batch_2", name, seconds=1))
        work = runner(here, app, max_batch_requests=2)
        work.start()
        await asyncio.sleep(0.6)
        await here.batches.change("batch_1", lambda b: structs.replace(b, status="cancelling"))
        batch = await ended(here)
        done = len(await here.download(batch.output_file_id))
        assert batch.status == "cancelled" and 0 < done < 200
        assert batch.request_counts.completed == done
        late = await ended(here, "batch_2")
        errors = await here.download(late.error_file_id)
        assert late.status == "expired" and errors[0]["error"]["code"] == "batch_expired"
        assert late.request_counts.completed + late.request_counts.failed == 200
        await work.close()
        await here.file.close()

    asyncio.run(main())


_GATEWAY = """
import asyncio, sys
from pathlib import Path
import baton_gateway.batches.runner as runners
from tests.support.gateway.batch_records import Stores
from tests.support.gateway.batch_runners import Echo, runner
runners._HOLD_SECONDS = 0.3

async def main():
    work = runner(Stores(Path(sys.argv[1])), Echo(0.004), max_batch_requests=4)
    work.start()
    print("running", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_kill_9_at_any_line_loses_none_and_repeats_none(tmp_path: Path) -> None:
    async def begin() -> None:
        here = Stores(tmp_path)
        name = await here.upload(b"".join(line(str(n), text=str(n)) for n in range(500)))
        await here.batches.add(stored("batch_1", name))
        await here.file.close()

    async def finish() -> tuple[Batch, list[str]]:
        here = Stores(tmp_path)
        batch = await ended(here)
        lines = await here.download(batch.output_file_id)
        await here.file.close()
        return batch, ids(lines)

    asyncio.run(begin())
    for seconds in (0.15, 0.4, 60.0):
        gateway = subprocess.Popen(
            [sys.executable, "-c", _GATEWAY, str(tmp_path)], stdout=subprocess.PIPE, cwd=os.getcwd()
        )
        try:
            assert gateway.stdout is not None and gateway.stdout.readline() == b"running\n"
            if seconds < 60:
                time.sleep(seconds)
            else:
                batch, found = asyncio.run(finish())
        finally:
            gateway.send_signal(signal.SIGKILL)
            gateway.wait()
            assert gateway.stdout is not None
            gateway.stdout.close()
    assert batch.status == "completed" and batch.request_counts == RequestCounts(500, 500, 0)
    assert found == [str(n) for n in range(500)]
