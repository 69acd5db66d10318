"""Arithmetic in C++ against that of torch, which it repeats bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.elementwise import repeat

Run = Callable[[Tensor, Tensor, Tensor], Tensor]
REPEATED: dict[str, Run] = {
    "rows": lambda x, y, _: x + y,
    "views of rows": lambda x, y, _: x[:, :20] - y[:, 5:25],
    "heads": lambda x, y, _: x.view(7, 3, 11) * y.view(7, 3, 11),
    "in place": lambda x, y, _: x.clone().mul_(y),
    "a number": lambda x, y, _: x * 0.7071,
    "a divisor": lambda x, y, _: x / 30.0,
    "a weight": lambda x, y, w: w * x,
    "a gate": lambda x, y, _: x * y[:, 3:4],
}
LEFT: dict[str, Run] = {
    "another factor": lambda x, y, _: x.add(y, alpha=2),
    "another dtype": lambda x, y, _: x * y.double(),
    "no rows": lambda x, y, w: w + w,
    "columns": lambda x, y, _: x.T.contiguous().T * 2,
    "another operator": lambda x, y, _: x.maximum(y),
}


class Repeating(TorchDispatchMode):
    """Makes every result again where the kernel can."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repeated = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        before = args[0].clone() if func._schema.is_mutable else args[0]
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name == "clone" or func.is_view:
            return out
        again = torch.empty_like(out) if out is not args[0] else out.copy_(before)
        if repeat(name, args, kwargs or {}, again, 7):
            self.repeated += 1
            return again
        return out


@pytest.mark.skipif(library("elementwise") is None, reason="no C++ compiler here")
def test_has_the_bits_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x, y = (torch.randn(7, 33, generator=generator).to(dtype) for _ in range(2))
        weight = torch.randn(33, generator=generator).to(dtype)
        for name, run in (REPEATED | LEFT).items():
            wanted, mode = run(x, y, weight), Repeating()
            with mode:
                found = run(x, y, weight)
            assert torch.equal(found, wanted), (name, dtype)
            assert mode.repeated == (name in REPEATED), (name, dtype)


@pytest.mark.skipif(library("elementwise") is None, reason="no C++ compiler here")
def test_copies_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 4, 3, 40, generator=generator)
    sources = {
        "columns": wide[:, 0, 0, 3:36],
        "heads": wide[:, 1:, 1, :20],
        "planes": wide.transpose(1, 2)[..., 5:9],
        "one of all": wide[:1, :, 2, :8].expand(7, 4, 8),
        "single values": wide[..., 7:8],
    }
    for name, source in sources.items():
        for dtype, to_dtype in product((torch.float32, torch.bfloat16), repeat=2):
            x = source.to(dtype)
            target = torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=to_dtype)
            to = target[..., 1:-2]
            assert repeat("copy_", (to, x), {}, to, 7), name
            assert torch.equal(to, x.to(to_dtype)) and not target[..., -2:].any()
            made = torch.empty_like(x)
            assert repeat("clone", (x,), {}, made, 7) and torch.equal(made, x)
    for x in (wide.half()[:, 0, 0], wide.flatten(1).T[:7], wide[:6, 0, 0]):
        assert not repeat("copy_", (torch.zeros(x.shape), x), {}, torch.zeros(x.shape), 7)
    parts = [wide[:, 0, 0, :5], wide[:, 1, 1, 7:8], wide[:, 2, 2]]
    joined = torch.cat(parts, dim=1)
    for axis in (1, -1):
        assert repeat("cat", (parts, axis), {}, made := torch.empty_like(joined), 7)
        assert torch.equal(made, joined)
    assert not repeat("cat", (parts[2:] * 2,), {}, torch.empty(14, 40), 14)
    assert repeat("new_zeros", (wide, [7, 3, 5]), {}, made := torch.ones(7, 3, 5), 7)
    assert not made.any()
