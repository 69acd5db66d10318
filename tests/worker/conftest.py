"""A second rank that is kept alive (a process costs more to start than any test with it), a driver
of models, one seed for the random tensors of every test, and a heap that is not given back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from baton_worker.checkpoint import fill
from tests.fakes.two_ranks import TwoRanks
from tests.support.worker.page_driver import Driver


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Random tensors are the same in every run: a failure can be repeated."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _kept_heap() -> Iterator[None]:
    """While weights load, freed memory stays in the process. To give it back takes time with every
    free block: a second's good part after thousands of tests, and a hundred times for one model.
    How much memory loading takes is measured in processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fill, "_KEPT", 1 << 30)
        yield


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    made = TwoRanks(tmp_path_factory.mktemp("ranks") / "meeting")
    yield made
    made.close()


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver
