"""The selective scan over pages against the recurrence, token by token in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F04.19", "F07.01", "F07.03")]
CPU = torch.device("cpu")
CHAINS = Chains(
    *(torch.tensor(x) for x in ([0, 3], [3, 4], [4, 0, 2, 5], [18, 0, 0, 3], [0, 2, 22, 27, 31]))
)
ASKED = [(4, 18, 20), (0, 0, 20), (2, 0, 5), (5, 3, 7)]
"""Of each page, which tokens ask; page 5 is of another row."""


@pytest.fixture
def seeded() -> Any:
    if reason := CpuScan.refuses(torch.float32, CPU):
        pytest.skip(reason)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize(("channels", "size"), [(1, 1), (5, 3), (64, 16), (203, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spread", [1.0, 30.0], ids=["near", "far"])
def test_pages_are_walked_like_the_recurrence(
    channels: int, size: int, dtype: torch.dtype, spread: float
) -> None:
    """Also where time steps are all but zero, or states forgotten at once."""
    width = 3 + 2 * channels + size
    tokens = torch.randn(6, 20, 1, 1, width + 2)[..., :width].to(dtype)
    tokens[..., 3 + channels : 3 + 2 * channels] *= spread
    pages = Snapshots(tokens, torch.randn(6, size, channels))
    rates, bias, read = (
        -torch.rand(size, channels) * 3,
        torch.randn(channels),
        torch.randn(31, size),
    )
    before = pages.states.clone()
    wanted, state = list[Tensor](), torch.zeros(0)
    begun = dict[int, Tensor]()
    for entry, (page, first, last) in enumerate(ASKED):
        state = pages.states[page].double() if entry in (0, 3) else state
        begun[page] = state
        for token in range(last):
            row = tokens[page, token, 0, 0, 3:].double()
            x, raised, write = row.split((channels, channels, size))
            step = F.softplus(raised + bias)
            state = torch.exp2(step * rates.double()) * state + write[:, None] * step * x
            if token >= first:
                wanted.append(read[len(wanted)].double() @ state)
    out = CpuScan(3)(pages, read, CHAINS, rates, bias)
    torch.testing.assert_close(out.double(), torch.stack(wanted), atol=1e-4, rtol=1e-5)
    for page in (0, 2):
        torch.testing.assert_close(pages.states[page].double(), begun[page], atol=1e-4, rtol=1e-5)
    assert torch.equal(pages.states[[1, 3, 4, 5]], before[[1, 3, 4, 5]])


@pytest.mark.parametrize("raised", [-80.0, -20.0, -5.0, 0.0, 0.5, 15.0, 40.0])
def test_time_steps_are_as_precise_as_floats(raised: float) -> None:
    """Of a state of nothing, which a token of 1 makes its time step: log(1 + e^x)."""
    tokens = torch.tensor([1.0, raised, 1.0]).view(1, 1, 1, 1, 3)
    one = Chains(*(torch.tensor(x) for x in ([0], [1], [0], [0], [0, 1])))
    pages = Snapshots(tokens, torch.zeros(1, 1, 1))
    zero = torch.zeros(1, 1)
    out = CpuScan(0)(pages, torch.ones(1, 1), one, zero, zero[0])
    wanted = torch.log1p(torch.tensor(raised).double().exp())
    torch.testing.assert_close(out[0, 0].double(), wanted, rtol=5e-7, atol=1e-37)


def test_what_it_has_no_code_for_is_refused() -> None:
    assert "no torch.float16" in str(CpuScan.refuses(torch.float16, CPU))
    assert "not on the CPU" in str(CpuScan.refuses(torch.float32, torch.device("meta")))
