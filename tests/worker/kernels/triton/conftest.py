"""Kernels in Triton's interpreter, or on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.fakes.triton_interpreter import interpreter


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    pytest.importorskip("triton", reason="triton is not installed")
    with interpreter():
        yield


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
