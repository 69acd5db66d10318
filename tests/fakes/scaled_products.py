"""Products of 8-bit floats as a GPU takes them: torch checks the arguments as those of a GPU, from
shapes and strides alone, and a CPU computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from baton_worker.kernels import fp8


class ScaledProducts:
    """Stands in for both functions of torch; `rows` lists the rows of each product."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = list[int]()
        self._plain: Any = torch._scaled_mm
        self._blocks: Any = F.scaled_mm
        patch.setattr(torch, "_scaled_mm", self._by_rows)
        patch.setattr(F, "scaled_mm", self._by_blocks)

    def _by_rows(self, a: Tensor, b: Tensor, *scales: Tensor, out_dtype: torch.dtype) -> Tensor:
        self._check(self._plain, a, b, *scales, out_dtype=out_dtype)
        assert scales[0].shape == (len(a), 1) and scales[1].shape == (1, b.shape[1])
        made: Tensor = self._plain(a, b, *scales, out_dtype=out_dtype)
        return made

    def _by_blocks(
        self,
        a: Tensor,
        b: Tensor,
        a_scales: Tensor,
        a_kind: Any,
        b_scales: Tensor,
        b_kind: Any,
        *,
        output_dtype: torch.dtype,
    ) -> Tensor:
        # The shape function takes scales that cuBLASLt would read at addresses it refuses.
        assert a_scales.stride(1) % 4 == 0 and b_scales.stride(1) % 4 == 0
        arguments = (a, b, a_scales, a_kind, b_scales, b_kind)
        self._check(self._blocks, *arguments, output_dtype=output_dtype)
        wide = fp8.dequantise(a, a_scales, (1, 128))
        weight = fp8.dequantise(b.T, b_scales[: a_scales.shape[1]].T, (128, 128))
        return (wide @ weight.T).to(output_dtype)

    def _check(self, function: Any, *arguments: Any, **options: Any) -> None:
        self.rows.append(len(arguments[0]))
        with FakeTensorMode():
            made = function(*(_on_gpu(given) for given in arguments), **options)
            assert made.shape == (len(arguments[0]), arguments[1].shape[1])


def _on_gpu(given: Any) -> Any:
    """A tensor without numbers, of the same layout, for a GPU that need not be there."""
    if not isinstance(given, Tensor):
        return given
    layout = given.shape, given.stride()
    return torch.empty_strided(*layout, dtype=given.dtype, device="cuda")
