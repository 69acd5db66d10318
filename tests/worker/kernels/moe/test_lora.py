"""Products of adapters in experts; parity with peft is tested with the adapters."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.kernels.linear import PlainLinear
from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.kernels.moe.lora import ExpertLora

CPU = torch.device("cpu")


def pair(rank: int, columns: int, rows: int) -> LoraPair:
    return LoraPair(torch.randn(rank, columns), torch.randn(rank, rows), 0.5)


def test_visits_have_the_products_of_their_tokens_adapter() -> None:
    tokens = TokenAdapters(2, 8, CPU)
    lora = ExpertLora(tokens, 2, [3, 3], hidden=4, size=3, like=torch.empty(0))
    visits = torch.tensor([0, 3, 4])  # Of tokens 0, 1 and 2, which visit two experts each.
    tokens.write(np.array([1, -1, 0]))
    assert lora.slots(visits, 2) is None, "no adapter has products here"
    gate, up, down = pair(2, 4, 3), pair(2, 4, 3), pair(2, 3, 4)
    lora.first[1].put(1, [gate, up])
    lora.down[1].put(1, [down])
    lora.mark(1, True)
    slots = lora.slots(visits, 2)
    assert slots is not None and slots.tolist() == [1, -1, -1]
    first, second = torch.randn(6, 4), torch.randn(4, 3)
    given = torch.randn(3, 4)

    def activate(inner: torch.Tensor) -> torch.Tensor:
        return inner[:, :3] * inner[:, 3:]

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return activate(given @ a.T) @ b.T

    added = torch.cat([0.5 * part.b.T @ part.a for part in (gate, up)])
    adapted = plain(first + added, second + 0.5 * down.b.T @ down.a)
    products = PlainLinear(first, None), PlainLinear(second, None)
    out = lora.run(1, given, slots, products, activate)
    torch.testing.assert_close(out[:1], adapted[:1])
    torch.testing.assert_close(out[1:], plain(first, second)[1:])
    lora.mark(1, False)
    assert lora.slots(visits, 2) is None
