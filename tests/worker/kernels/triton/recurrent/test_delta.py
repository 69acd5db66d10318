"""Delta nets, walked on a GPU, against the kernel in C++."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.recurrent.delta import CpuDelta, Shape
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots

CHAINS = ([0, 3], [2, 4], [4, 0, 1, 2], [5, 0, -1, 3], [0, 1, 4, 4, 5])
"""A row that goes on with token 5 of page 4, into page 0; another within page 2. Page 1 is of none
of them."""


@pytest.mark.row("F04.18", "F07.13")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (Shape(2, 13, heads=4, key_heads=2, key_dim=5, value_dim=7, channels=1), torch.bfloat16),
        (Shape(3, 21, heads=2, key_heads=2, key_dim=9, value_dim=11, channels=9), torch.float32),
    ],
    ids=["a decay per head", "a decay per channel"],
)
def test_pages_are_walked_as_by_the_kernel_in_cpp(
    shape: Shape, dtype: torch.dtype, device: torch.device
) -> None:
    from baton_worker.kernels.triton.recurrent.delta import TritonDelta

    if reason := CpuDelta.refuses(dtype, torch.device("cpu")):
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(5, 6, 1, 1, 50, generator=generator).to(dtype)
    states = torch.randn(5, shape.heads, shape.key_dim, shape.value_dim, generator=generator)
    query = torch.randn(5, shape.key_heads, shape.key_dim, generator=generator)
    strength = 2 * torch.rand(4, 6, shape.heads, generator=generator)
    decay = -2 * torch.rand(4, 6, shape.heads, shape.channels, generator=generator)
    made = []
    for kind, place in ((CpuDelta, torch.device("cpu")), (TritonDelta, device)):
        pages = Snapshots(tokens.to(place), states.to(place, copy=True))
        chains = Chains(*(torch.tensor(column, device=place) for column in CHAINS))
        given = (part.to(place) for part in (strength, decay))
        made.append((kind(shape)(pages, query.to(place), chains, *given), pages.states))
    for found, expected in zip(made[1], made[0], strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=2e-5)
