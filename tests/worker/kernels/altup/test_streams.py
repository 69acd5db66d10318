"""Streams of Gemma 3n in C++ against torch."""

from __future__ import annotations

import ctypes
from functools import partial

import pytest
import torch

from baton_worker.config import Config
from baton_worker.kernels.altup.streams import CpuStreams
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.platform import machine

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
CPU = torch.device("cpu")
COUNT, ACTIVE, HIDDEN = 3, 1, 37


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_equals_the_twins(level: IsaLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    if not level.needs <= machine.instructions():
        pytest.skip(f"this CPU has no {level.name}")
    path = Builder("", Config.load().cache_dir / "kernels").library("altup", level)
    kernels = ctypes.CDLL(str(path))
    monkeypatch.setattr("baton_worker.kernels.altup.streams.library", lambda name: kernels)
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in TOLERANCES.items():
        close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
        ours = CpuStreams(COUNT, ACTIVE, HIDDEN, dtype)
        for rows in (1, 5, 400):

            def drawn(*shape: int, rows: int = rows, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.randn(rows, *shape, generator=generator).to(dtype)

            x, weights, shares = drawn(COUNT, HIDDEN), drawn(COUNT**2), drawn(COUNT)
            more, wide = drawn(HIDDEN), drawn(2 * HIDDEN)
            exact = x.float()
            mixed = weights.float().view(rows, COUNT, COUNT) @ exact
            close(ours.predict(x, weights).float(), exact + mixed)
            changed = (more.float() - exact[:, ACTIVE])[:, None]
            corrected = exact + changed * (1 + shares.float())[..., None]
            close(ours.correct(x, more, shares).float(), corrected)
            close(ours.average(x).float(), exact.mean(1))
            extended = x.clone()
            ours.extend_(extended, more)
            exact[:, 1:] += more.float()[:, None]
            close(extended.float(), exact)
            some, out = wide[:, HIDDEN:], torch.zeros_like(wide)
            some[0] *= 1e-4  # Below the least mean square.
            ours.liken(some, more, 1e-5, out[:, 3 : 3 + HIDDEN])
            wanted = more.float().square().mean(1).sqrt()
            found = some.float().square().mean(1).clamp(min=1e-5).sqrt()
            likened = some.float() * (wanted / found)[:, None]
            close(out[:, 3 : 3 + HIDDEN].float(), likened)
            assert not out[:, 3 + HIDDEN :].any()


def test_what_it_cannot_do_is_refused_with_a_reason() -> None:
    assert "float64" in str(CpuStreams.refuses(torch.float64, CPU))
    assert "not on the CPU" in str(CpuStreams.refuses(torch.float32, torch.device("cuda")))
