"""Selective scans, walked on a GPU, against the kernel in C++."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots

CHAINS = ([0, 3], [2, 4], [4, 0, 1, 2], [5, 0, -1, 3], [0, 1, 4, 4, 5])
"""A row that goes on with token 5 of page 4, into page 0; another within page 2. Page 1 is of none
of them."""


@pytest.mark.row("F07.01")
@pytest.mark.parametrize(
    ("channels", "size", "dtype"), [(70, 3, torch.float32), (5, 16, torch.bfloat16)]
)
def test_pages_are_walked_as_by_the_kernel_in_cpp(
    channels: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    from baton_worker.kernels.triton.recurrent.scan import TritonScan

    if reason := CpuScan.refuses(dtype, torch.device("cpu")):
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(0)
    width = 3 + 2 * channels + size
    tokens = torch.randn(5, 6, 1, 1, width + 2, generator=generator)[..., :width].to(dtype)
    tokens[:3, :, :, :, 3 + channels : 3 + 2 * channels] *= 30  # All but nothing, or all at once.
    states, read = (torch.randn(5, size, n, generator=generator) for n in (channels, 1))
    rates = -torch.rand(size, channels, generator=generator)
    bias = torch.randn(channels, generator=generator)
    made = []
    for kind, place in ((CpuScan, torch.device("cpu")), (TritonScan, device)):
        pages = Snapshots(tokens.to(place), states.to(place, copy=True))
        chains = Chains(*(torch.tensor(column, device=place) for column in CHAINS))
        rest = rates.to(place), bias.to(place)
        made.append((kind(3)(pages, read[..., 0].to(place), chains, *rest), pages.states))
    for found, expected in zip(made[1], made[0], strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-4)


def test_time_steps_are_as_precise_as_floats(device: torch.device) -> None:
    """Of states of nothing, which a token of 1 makes its time step: log(1 + e^x)."""
    from baton_worker.kernels.triton.recurrent.scan import TritonScan

    raised = torch.tensor([-80.0, -20.0, -5.0, 0.0, 0.5, 15.0, 40.0])
    row = torch.cat((torch.ones(7), raised, torch.ones(1))).view(1, 1, 1, 1, 15)
    columns = ([0], [1], [0], [0], [0, 1])
    chains = Chains(*(torch.tensor(column, device=device) for column in columns))
    pages = Snapshots(row.to(device), torch.zeros(1, 1, 7, device=device))
    zero = torch.zeros(1, 7, device=device)
    out = TritonScan(0)(pages, torch.ones(1, 1, device=device), chains, zero, zero[0])
    wanted = torch.log1p(raised.double().exp())
    torch.testing.assert_close(out[0].cpu().double(), wanted, rtol=2e-6, atol=1e-37)
