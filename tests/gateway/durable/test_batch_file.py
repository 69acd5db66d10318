from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable.batch_file import open_batch_file


def test_the_file_is_where_the_settings_say(tmp_path: Path) -> None:
    async def main() -> None:
        for config, path in (
            (Config(run_dir=tmp_path), tmp_path / "batches.sqlite"),
            (Config(batch_path=tmp_path / "b.db"), tmp_path / "b.db"),
        ):
            file = open_batch_file(config)
            assert not path.exists()
            await file.run(lambda db: db.execute("SELECT COUNT(*) FROM batches"))
            assert path.stat().st_mode & 0o777 == 0o600
            await file.close()

    asyncio.run(main())


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    async def main() -> None:
        file = open_batch_file(Config(batch_path=tmp_path))
        with pytest.raises(Unavailable, match="files and batches"):
            await file.run(lambda db: db.execute("SELECT 1"))

    asyncio.run(main())
