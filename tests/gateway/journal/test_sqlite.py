"""The file: private, bounded, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.journal.sqlite import SqliteJournal
from tests.gateway.journal.conftest import ticket


def _open(path: Path, size: int = 1 << 20) -> SqliteJournal:
    return SqliteJournal(Config(journal_path=path, journal_bytes=size))


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "a" / "journal"
        journal = _open(path)
        await journal.prune()
        assert not path.exists(), "it is made for the first stream"
        await journal.create(ticket())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        await journal.close()

    asyncio.run(main())


def test_without_a_path_it_lies_in_the_run_directory(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SqliteJournal(Config(run_dir=tmp_path))
        await journal.create(ticket())
        assert (tmp_path / "journal.sqlite").exists()
        await journal.close()

    asyncio.run(main())


def test_finished_streams_make_room_and_running_ones_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        journal = _open(tmp_path / "journal", 4096)
        for name in ("old", "done", "running"):
            await journal.create(ticket(name, size=900))
        await journal.append("done", 1, b"", done=True)
        await journal.append("old", 1, b"", done=True)
        await journal.create(ticket("new", size=900))
        await journal.create(ticket("newer", size=900))
        assert await journal.take("done", "me") is None, "the one that was touched first"
        with pytest.raises(Unavailable) as caught:
            for number in range(3):
                await journal.create(ticket(f"more{number}", size=900))
        assert caught.value.code == "journal_full" and caught.value.retry_after
        for name in ("running", "new", "newer"):
            assert await journal.take(name, "me") is not None
        await journal.close()

    asyncio.run(main())


def test_a_file_that_is_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        path = tmp_path / "journal"
        path.write_bytes(b"this is not a database" * 100)
        journal = _open(path)
        for work in (journal.create(ticket()), journal.take("s", "me")):
            with pytest.raises(Unavailable) as caught:
                await work
            assert caught.value.code == "journal_unavailable"
        with pytest.raises(Unavailable):
            await journal.append("s", 1, b"1", done=False)
        await journal.close()

    asyncio.run(main())
    assert "cannot be used" in caplog.text
