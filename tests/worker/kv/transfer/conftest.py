from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_worker.kv.transfer import Exporter
from tests.fakes.pages import filled


@pytest.fixture
def source(run_dir: Path) -> Iterator[Exporter]:
    made = Exporter(filled(8), f"ipc://{run_dir}/pages.sock")
    made.start()
    yield made
    made.stop()
