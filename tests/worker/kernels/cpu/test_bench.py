"""The measurement of the products beside oneDNN's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.cpu import bench
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearKernel


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer, once."""
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    monkeypatch.setattr(bench, "LAYERS", 1)
    monkeypatch.setattr(bench, "_REPEATS", 2)
    monkeypatch.setattr(bench, "_ROWS", (1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_computes_the_same_products(dtype: torch.dtype) -> None:
    forms = bench.candidates(dtype)
    for number, (columns, depth) in enumerate(bench.SHAPES):
        x = torch.randn(3, depth).to(dtype)
        results = [kernels[number](x).float() for kernels in forms.values()]
        assert all(y.shape == (3, columns) for y in results)
        # Of the quantised ones the last has four bits: one code in fifteen of a group's range.
        assert all((y - results[0]).norm() < 0.15 * results[0].norm() for y in results)


def test_each_form_is_timed() -> None:
    forms = bench.candidates(torch.float32)
    taken = bench.seconds(forms, 2, torch.float32)
    assert taken.keys() == forms.keys() and all(0 < time < float("inf") for time in taken.values())


def test_no_form_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_SECONDS", 0.0)
    passes: list[LinearKernel] = []
    timed = bench._timed

    def counted(kernels: list[LinearKernel], inputs: list[Tensor]) -> float:
        passes.append(kernels[0])
        return timed(kernels, inputs)

    monkeypatch.setattr(bench, "_timed", counted)
    forms = bench.candidates(torch.float32)
    bench.seconds(forms, 1, torch.float32)
    assert len(passes) == len(forms)
