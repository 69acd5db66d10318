"""Rows of an embedding table with adapters, against the tables that they mean."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.kernels.lora.embedding import LoraEmbedding


def test_each_token_has_the_row_of_its_adapter() -> None:
    adapters = TokenAdapters(3, 64, torch.device("cpu"))
    table, base, whole = LoraEmbedding(adapters), torch.randn(20, 6), torch.randn(20, 6)
    pair = LoraPair(torch.randn(20, 3), torch.randn(3, 6), 0.5)
    table.put(0, whole, None)
    table.put(1, None, pair)
    table.put(2, whole, pair)
    adapters.eager |= {0, 1, 2}
    slots, numbers = np.array([-1, 0, 1, 2, 1, -1, 0]), torch.tensor([3, 3, 3, 3, 19, 0, 7])
    adapters.write(slots)
    assert adapters.needs_eager
    delta = 0.5 * pair.a @ pair.b
    tables = {-1: base, 0: whole, 1: base + delta, 2: whole + delta}
    wanted = torch.stack([tables[s][n] for s, n in zip(slots.tolist(), numbers, strict=True)])
    found = table.apply(numbers, base[numbers])
    torch.testing.assert_close(found, wanted)
    adapters.write(slots[2:3])
    assert torch.equal(table.apply(numbers[2:3], base[numbers[2:3]])[0], found[2])
    table.put(0, None, None)
    adapters.write(np.array([0, -1]))
    assert torch.equal(table.apply(numbers[:2], base[numbers[:2]]), base[numbers[:2]])
