"""Every kernel at the shapes of real layers, against float64 on the same device."""

from __future__ import annotations

import pytest
import torch

from baton_worker.bench.gpu.kernel_cases import REAL
from tests.gpu import checks


@pytest.mark.row("F21.01", "F21.02", "F21.03", "F21.04", "F21.05", "F21.06", "F21.07", "F21.08")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_equal_their_references(card: torch.device, dtype: torch.dtype) -> None:
    checks.kernels_equal_their_references(card, dtype, REAL)
