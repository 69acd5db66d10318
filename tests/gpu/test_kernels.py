"""Every kernel at the shapes of real layers, against float64 on the same device."""

from __future__ import annotations

import pytest
import torch

from baton_worker.bench.gpu.kernel_case import REAL
from tests.gpu import checks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_equal_their_references(card: torch.device, dtype: torch.dtype) -> None:
    checks.kernels_equal_their_references(card, dtype, REAL)
