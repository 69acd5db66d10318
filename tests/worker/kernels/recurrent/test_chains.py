"""Pages and earlier tokens of a step, found by the kernel in C++."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.recurrent import chains
from tests.support.worker import found_chains

CPU = torch.device("cpu")


@pytest.mark.row("F13.06")
def test_rows_have_the_pages_that_the_host_finds() -> None:
    if not chains.runs(CPU, torch.float32):
        pytest.skip("no C++ compiler here")
    for empty in (0, 2):
        found_chains.check(chains.find, CPU, empty)
    assert not chains.runs(CPU, torch.float16)
    assert not chains.runs(CPU, torch.float32, "another kernel computes the layer")
