"""Tests of the tier that needs a GPU (`make test-gpu`); every test of this folder has its mark, but
for those that try its code elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

_ELSEWHERE = "test_without_gpu.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name != _ELSEWHERE:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))


@pytest.fixture
def card() -> torch.device:
    """The GPU."""
    return torch.device("cuda", 0)
