"""Delta nets in chunks, against their twin in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.delta import Shape
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.delta_inputs import Decays
from baton_worker.layers.ssm.delta_scan import Blockwise, Compiled
from baton_worker.layers.ssm.page_segments import Cut
from tests.fakes.random_weights import fill

NORM = spec.GatedNorm(1e-6, 40, gate_first=False, shared=True)
GATED = spec.DeltaNet(2, 4, 24, 40, 4, NORM, strength=2.0)
KIMI = spec.DeltaNet(3, 3, 21, 19, 3, NORM, rank=5)
CASES = {
    "a decay per head, two chunks in a page": (GATED, 100, torch.bfloat16),
    "a decay per head, float32": (GATED, 24, torch.float32),
    "a decay per channel, small pages": (KIMI, 6, torch.bfloat16),
    "a decay per channel, float32": (KIMI, 70, torch.float32),
}
COUNTS, STARTS = [73, 1, 40, 5, 33], [0, 24, 30, 21, 100]
"""Rows that begin, go on within a page, begin a page, and end anywhere; two of them are walked."""


@pytest.mark.row("F04.18", "F07.13")
@pytest.mark.parametrize(("settings", "page_size", "dtype"), CASES.values(), ids=CASES.keys())
def test_states_and_outputs_are_those_of_the_twin(
    settings: spec.DeltaNet, page_size: int, dtype: torch.dtype, device: torch.device
) -> None:
    from baton_worker.kernels.triton.recurrent.delta import TritonDelta

    torch.manual_seed(0)
    decays = Decays(settings, BuildContext(device, dtype))
    fill(decays)
    each = -(-133 // page_size)
    tables = torch.arange(5 * each).view(each, 5).T.tolist()
    batch = AttentionBatch.build(COUNTS, STARTS, tables, page_size, device)
    segments = Cut().plan(batch, Cut())
    query = torch.randn(sum(COUNTS), settings.key_width).to(device, dtype)
    tokens = torch.randn(5 * each, page_size, *settings.row).to(device, dtype)
    states = torch.randn(5 * each, *settings.state).to(device)
    at, heads = settings.convolved, (settings.num_heads, settings.num_key_heads)
    sizes = settings.key_dim, settings.value_dim, settings.decays // settings.num_heads
    kernel, made = TritonDelta(Shape(at, at + settings.key_width, *heads, *sizes)), list[Tensor]()
    for form in (Compiled(settings, decays, kernel), Blockwise(settings, decays)):
        pages = Snapshots(tokens, states.clone())
        made += [form(pages, query, segments).flatten(1), pages.states]
    # In products of bfloat16, states, keys and updates have 8 bits.
    near = 2e-2 if dtype is torch.bfloat16 else 2e-5
    for found, wanted in zip(made[:2], made[2:], strict=True):
        least = near * float(wanted.abs().max())
        torch.testing.assert_close(found, wanted, rtol=near, atol=least)


def test_updates_of_equal_keys_have_all_their_digits(device: torch.device) -> None:
    """Powers of their system would be larger than its inverse by many digits."""
    from baton_worker.kernels.triton.recurrent.delta import TritonDelta

    count, shape = 64, Shape(0, 4, 1, 1, 4, 4, 1)
    rows = torch.ones(1, count, 1, 1, 8)
    rows[..., 4:] = torch.randn(count, 1, 1, 4, generator=torch.Generator().manual_seed(0))
    query, columns = torch.ones(count, 1, 4), ([0], [1], [0], [0], [0, count])
    chains = Chains(*(torch.tensor(column, device=device) for column in columns))
    given = torch.full((1, count, 1), 1.9), torch.zeros(1, count, 1, 1)
    made = []
    for exact in (True, False):
        pages = Snapshots(rows.to(device), torch.zeros(1, 1, 4, 4, device=device))
        kernel = TritonDelta(shape, exact=exact)
        made.append(kernel(pages, query.to(device), chains, *(part.to(device) for part in given)))
    torch.testing.assert_close(made[1], made[0], rtol=2e-5, atol=2e-5)
