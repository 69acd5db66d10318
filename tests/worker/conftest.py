"""Ranks that are kept alive: starting a process costs more than any test with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.two_ranks import TwoRanks


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    made = TwoRanks(tmp_path_factory.mktemp("ranks") / "meeting")
    yield made
    made.close()
