"""Gates of which the largest count, in C++ against torch."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from baton_worker.config import Config
from baton_worker.kernels.altup import sparse_gate as module
from baton_worker.kernels.altup.sparse_gate import sparse_gate
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.call_recorder import Kernel
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.platform import machine


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_equals_the_twin(level: IsaLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    if not level.needs <= machine.instructions():
        pytest.skip(f"this CPU has no {level.name}")
    path = Builder("", Config.load().cache_dir / "kernels").library("altup", level)
    run = Kernel(ctypes.CDLL(str(path)).baton_sparse_gate, 5, tokens=3)
    monkeypatch.setattr(module, "_kernel", cache(lambda: run))
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        for rows, size in ((1, 7), (5, 64), (300, 203)):
            both = (2 + torch.randn(rows, 2 * size, generator=generator)).to(dtype)
            gate, up = both.chunk(2, dim=1)
            ours = sparse_gate("gelu_pytorch_tanh", 0.7, gate, up)
            assert ours is not None
            exact = gate.double()
            least = exact.mean(1) + 0.7 * exact.std(1, correction=0)
            opened = F.gelu(F.relu(exact - least[:, None]), approximate="tanh")
            expected = (opened * up.double()).float()
            torch.testing.assert_close(ours.float(), expected, rtol=tolerance, atol=tolerance)
    assert sparse_gate("gelu_new", 0.7, gate.double(), up.double()) is None
    assert sparse_gate("mish", 0.7, gate, up) is None
