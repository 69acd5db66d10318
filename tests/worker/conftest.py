"""A second rank that is kept alive (a process costs more to start than any test with it), a driver
of models, and one seed for the random tensors of every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.fakes.two_ranks import TwoRanks
from tests.support.worker.page_driver import Driver


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random tensors are the same in every run: a failure can be repeated."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    made = TwoRanks(tmp_path_factory.mktemp("ranks") / "meeting")
    yield made
    made.close()


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver
