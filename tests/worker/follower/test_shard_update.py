"""Other weights of a shard: the last that was asked for, or none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from baton.errors import ModelError
from baton_worker.follower.shard_update import Shard, ShardUpdate

pytestmark = pytest.mark.row("F14.14")


def test_the_last_shard_that_was_asked_for_is_there_once_it_is_loaded() -> None:
    def load(path: Path, patches: tuple[Path, ...]) -> Shard:
        if path.name == "torn":
            raise ModelError("it is torn")
        if path.name == "large":
            raise MemoryError
        return Shard(cast(Any, (path, patches)), cast(Any, None))

    with closing(ShardUpdate(load)) as update:
        assert update.loaded() is None
        patches = (Path("/patch"),)
        update.begin(Path("/old"), ())
        update.begin(Path("/new"), patches)
        found = update.loaded()
        assert found is not None and cast(Any, found.model) == (Path("/new"), patches)
        update.drop()
        assert update.loaded() is None
        for name in ("torn", "large"):
            update.begin(Path(f"/{name}"), ())
            assert update.loaded() is None
