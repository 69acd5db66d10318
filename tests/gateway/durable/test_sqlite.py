"""The SQLite journal: file mode, size limit, write errors."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable import sqlite, sqlite_file
from baton_gateway.durable.journal import StreamFenced
from baton_gateway.durable.sqlite import SqliteJournal
from tests.gateway.durable.conftest import ticket


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
        assert await journal.claim("done", "me") is None, "the one that was touched first"
        with pytest.raises(Unavailable) as caught:
            for number in range(3):
                await journal.create(ticket(f"more{number}", size=900))
        assert caught.value.code == "journal_full" and caught.value.retry_after
        for name in ("running", "new", "newer"):
            assert await journal.claim(name, "me") is not None
        await journal.close()

    asyncio.run(main())


def _sums(path: Path) -> tuple[int, int]:
    """Bytes of all streams together, as they are noted and as they are."""
    with closing(sqlite3.connect(path)) as db:
        (noted,) = db.execute("SELECT bytes FROM held").fetchone()
        (real,) = db.execute("SELECT COALESCE(SUM(size), 0) FROM streams").fetchone()
    return noted, real


def test_it_knows_how_much_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "journal"
        journal, other = _open(path, 4096), _open(path, 4096)
        for name in ("a", "b", "c"):
            await journal.create(ticket(name, size=500))
            await other.append(name, 1, b"x" * 300, done=name != "a")
        noted, real = _sums(path)
        assert noted == real > 3 * 800
        await journal.create(ticket("d", size=1500))
        noted, real = _sums(path)
        assert noted == real <= 4096, "something has made room"
        await journal.close()
        await other.close()

    asyncio.run(main())


def test_it_counts_what_is_in_a_file_that_has_no_count(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "journal"
        journal = _open(path)
        await journal.create(ticket("old", size=700))
        await journal.close()
        with closing(sqlite3.connect(path)) as db:
            db.executescript("DROP TABLE held; DROP TRIGGER begun; DROP TRIGGER grown;")
        journal = _open(path)
        await journal.create(ticket("new", size=700))
        await journal.append("old", 1, b"x" * 50, done=False)
        noted, real = _sums(path)
        assert noted == real > 1450
        await journal.close()

    asyncio.run(main())


def test_to_begin_costs_the_same_however_many_streams_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counted(path: Path, schema: str) -> sqlite3.Connection:
        db = opened(path, schema)
        db.set_progress_handler(count, 1)
        return db

    opened = sqlite_file._open
    monkeypatch.setattr(sqlite_file, "_open", counted)

    async def main() -> None:
        nonlocal steps
        journal, costs = _open(tmp_path / "journal"), []
        for number in range(301):
            steps = 0
            await journal.create(ticket(f"s{number}"))
            costs.append(steps)
            await journal.append(f"s{number}", 1, b"x", done=number % 2 == 0)
        assert 0 < costs[300] < 2 * costs[1], "steps of the database's machine"
        await journal.close()

    asyncio.run(main())


def test_it_forgets_little_by_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    monkeypatch.setattr(sqlite, "_FORGOTTEN_AT_ONCE", 2)

    async def main() -> None:
        path = tmp_path / "journal"
        journal = SqliteJournal(Config(journal_path=path, journal_seconds=60))
        for number in range(7):
            await journal.create(ticket(f"s{number}"))
            await journal.append(f"s{number}", 1, b"x", done=number % 2 == 0)
        later(61.0)
        await journal.create(ticket("young"))
        await journal.prune()
        with closing(sqlite3.connect(path)) as db:
            left = [name for (name,) in db.execute("SELECT id FROM streams")]
            (parts,) = db.execute("SELECT COUNT(*) FROM parts").fetchone()
        assert not any(name.startswith("s") for name in left) and parts == 0
        assert _sums(path)[0] == _sums(path)[1]
        await journal.close()

    asyncio.run(main())


def test_a_file_that_is_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        path = tmp_path / "journal"
        path.write_bytes(b"this is not a database" * 100)
        journal = _open(path)
        for work in (journal.create(ticket()), journal.claim("s", "me")):
            with pytest.raises(Unavailable) as caught:
                await work
            assert caught.value.code == "journal_unavailable"
        with pytest.raises(Unavailable):
            await journal.append("s", 1, b"1", done=False)
        await journal.close()

    asyncio.run(main())
    assert "cannot be used" in caplog.text


def test_a_corrupt_journal_is_set_aside_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        path = tmp_path / "journal"
        journal = _open(path)
        assert journal.problem == ""
        await journal.create(ticket("old"))
        await journal.close()
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
        journal = _open(path)
        epoch = await journal.create(ticket("new"))
        await journal.append("new", epoch, b"1", done=True)
        assert (await journal.claim("old", "me"), journal.problem != "") == (None, True)
        kept = await journal.claim("new", "me")
        assert kept is not None and kept.parts == (b"1",)
        with pytest.raises(Unavailable):  # a stream of the old file is lost, nobody has taken it
            await journal.append("old", 1, b"1", done=False)
        with pytest.raises(StreamFenced):
            await journal.append("new", epoch, b"2", done=False)
        await journal.close()
        (aside,) = tmp_path.glob("journal.corrupt-*[0-9]")
        assert aside.name in journal.problem and aside.name in caplog.text

    asyncio.run(main())


def test_a_damaged_head_is_corrupt_where_the_name_is_ours(tmp_path: Path) -> None:
    async def main() -> None:
        tmp_path.chmod(0o700)
        (tmp_path / "journal.sqlite").write_bytes(b"\0" * 8192)
        (tmp_path / "journal.sqlite").write_bytes(b"garbage " * 1024)
        journal = SqliteJournal(Config(run_dir=tmp_path))
        assert await journal.create(ticket()) == 1
        await journal.close()
        assert list(tmp_path.glob("journal.sqlite.corrupt-*"))

    asyncio.run(main())
