"""Rotation against torch."""

from __future__ import annotations

import pytest
import torch

from baton_worker.layers.rope.rope import Rotary, rotate_
from baton_worker.spec import Rope

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@pytest.mark.row("F21.02")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("head_dim", "dim"), [(40, 24), (64, 64), (8, 8), (80, 80), (8, 2)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_equals_the_twin(
    dtype: torch.dtype, head_dim: int, dim: int, interleaved: bool, device: torch.device
) -> None:
    from baton_worker.kernels.triton import rope

    positions = torch.tensor([0, 3, 900], device=device)
    rope_of = Rope(dim, 1e4, 1024, interleaved=interleaved)
    angles = Rotary(rope_of, device).angles(positions, dtype)
    heads = torch.randn(3, 9, head_dim, generator=torch.Generator().manual_seed(dim))
    heads = heads.to(device, dtype)
    # The twin on a CPU, for on a GPU it is the kernel.
    ours, twin = heads.clone(), heads.cpu()
    rope.rotate_(ours[:, :5], angles.cos, angles.sin, interleaved=interleaved)
    rotate_(twin[:, :5], Rotary(rope_of, CPU).angles(positions.cpu(), dtype))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours.cpu(), twin, rtol=tolerance, atol=tolerance)
    assert torch.equal(ours[:, 5:], heads[:, 5:]) and not torch.equal(ours[1], heads[1])
