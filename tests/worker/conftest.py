"""A second rank that is kept alive (a process costs more to start than any test with it), and a
driver of models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.two_ranks import TwoRanks
from tests.support.worker.page_driver import Driver


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    made = TwoRanks(tmp_path_factory.mktemp("ranks") / "meeting")
    yield made
    made.close()


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver
