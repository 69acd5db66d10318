"""Where the layers under test are built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from baton_worker.layers.build_context import BuildContext


@pytest.fixture
def context() -> BuildContext:
    """A float32 CPU context whose names are the roles themselves."""
    return BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


@pytest.fixture
def seeded() -> Iterator[None]:
    """The same random numbers in every run, and no others for whoever comes next."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
