"""Pages and earlier tokens of a step, found by a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.worker import found_chains


@pytest.mark.row("F13.06")
@pytest.mark.parametrize("empty", [0, 2])
def test_rows_have_the_pages_that_the_host_finds(device: torch.device, empty: int) -> None:
    from baton_worker.kernels.triton.recurrent import chains

    found_chains.check(chains.find, device, empty)
