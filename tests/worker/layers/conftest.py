"""Where the layers under test are built."""

from __future__ import annotations

import pytest
import torch

from baton_worker.layers.layer import Site


@pytest.fixture
def site() -> Site:
    """A float32 CPU site whose names are the roles themselves."""
    return Site(torch.device("cpu"), torch.float32, lambda role: role)
