"""Random weights and inputs of products."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kernels.block_kinds import FLOAT_SCALES, KINDS
from baton_worker.kernels.quantized_weights import BlockQuantized


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def some_blocks(kind: str, columns: int, depth: int) -> BlockQuantized:
    """Random codes and scales of a kind."""
    form, generator = KINDS[kind], torch.Generator().manual_seed(columns)

    def integers(low: int, high: int, width: int) -> Tensor:
        return torch.randint(low, high, (columns, width), generator=generator, dtype=torch.int8)

    def positive(width: int) -> Tensor:
        return torch.rand(columns, width, generator=generator) / 16

    def small_floats(width: int) -> Tensor:
        given = torch.randn(columns, width, generator=generator)
        return given.to(torch.float8_e4m3fn).view(torch.int8)

    heads = depth // (form.super_group or form.group)
    if kind == "fp8":
        return BlockQuantized(kind, small_floats(depth), positive(heads))
    # 127 + 1 is no int8.
    codes = integers(form.lowest, min(form.highest + 1, 127), depth)
    if kind in FLOAT_SCALES - {"nvfp4"}:
        return BlockQuantized(kind, codes, positive(heads))
    if kind == "mxfp4":
        return BlockQuantized(kind, codes, integers(110, 127, heads).view(torch.uint8))
    if kind == "nvfp4":
        scales = small_floats(depth // form.group)
        return BlockQuantized(kind, codes, positive(heads), scale_steps=scales)
    steps: list[Tensor | None] = [None, None]
    if form.super_group:
        steps = [integers(1, 64, depth // form.group) for _ in range(2)]
    if form.has_offset:
        steps = [None, integers(-16, 1, depth // form.group)]
    return BlockQuantized(
        kind,
        codes,
        positive(heads).half(),
        -positive(heads).half() if form.has_minimum else None,
        steps[0],
        steps[1] if form.has_minimum or form.has_offset else None,
    )
