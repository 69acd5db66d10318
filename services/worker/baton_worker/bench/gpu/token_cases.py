"""Kernels that process tokens one by one: norms, rotation, KV write, gates and routing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.bench.gpu.case_inputs import CaseInputs
from baton_worker.bench.gpu.kernel_case import KernelCase
from baton_worker.kernels.rope import HeadNorm


def cases(inputs: CaseInputs) -> Iterator[KernelCase]:
    """Each kernel on the tokens of a prompt."""
    for case in (_norm, _rope, _kv_write, _heads, _gate, _top_k):
        yield case(inputs)


def _norm(inputs: CaseInputs) -> KernelCase:
    from baton_worker.kernels.triton.norm import norm

    sizes = inputs.sizes
    x, residual = (inputs.random(sizes.prompt, sizes.hidden) for _ in range(2))
    weight = inputs.random(sizes.hidden)

    def reference() -> Tensor:
        total = (x.double() + residual.double()).to(inputs.dtype).double()
        return F.rms_norm(total, (sizes.hidden,), weight.double(), 1e-6)

    run = lambda: norm(x, residual, weight, None, 1e-6)[0]  # noqa: E731
    return KernelCase("add_rms_norm", run, reference, 4 * x.nbytes, 0, inputs.tolerance)


def _rope(inputs: CaseInputs) -> KernelCase:
    from baton_worker.kernels.triton.rope import rotate_

    sizes, half = inputs.sizes, inputs.sizes.head_dim // 2
    heads = inputs.random(sizes.prompt, sizes.heads, sizes.head_dim)
    angles = torch.arange(sizes.prompt, device=inputs.device)[:, None, None] * 0.01
    angles = angles.expand(-1, 1, sizes.head_dim)
    sign = torch.ones(sizes.head_dim, device=inputs.device)
    sign[:half] = -1
    cos = angles.cos().to(inputs.dtype).contiguous()
    sin = (angles.sin() * sign).to(inputs.dtype).contiguous()

    def run() -> Tensor:
        out = heads.clone()
        rotate_(out, cos, sin, interleaved=False)
        return out

    def reference() -> Tensor:
        wide = heads.double()
        swapped = torch.cat((wide[..., half:], wide[..., :half]), -1)
        return wide * cos.double() + swapped * sin.double()

    return KernelCase("rope", run, reference, 4 * heads.nbytes, 0, inputs.tolerance)


def _heads(inputs: CaseInputs) -> KernelCase:
    """Norms of heads, rotation and KV write; half of the channels are rotated."""
    from baton_worker.kernels.triton.heads import TritonHeads

    sizes, dim = inputs.sizes, inputs.sizes.head_dim // 2
    shape, num_rotated = (
        (sizes.heads, sizes.kv_heads, sizes.head_dim),
        sizes.heads + sizes.kv_heads,
    )
    heads = inputs.random(sizes.prompt, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
    cos, sin = (inputs.random(sizes.prompt, 1, dim) for _ in range(2))
    norms = (HeadNorm(inputs.random(sizes.head_dim), 1e-6),) * 2
    pages = torch.zeros(1, sizes.prompt, 2, *shape[1:], dtype=inputs.dtype, device=inputs.device)
    slots = torch.arange(sizes.prompt, device=inputs.device).flip(0)
    names = ("num_heads", "num_kv_heads", "head_dim")
    counts: dict[str, Any] = dict(zip(names, shape, strict=True))
    place = TritonHeads(dim=dim, norms=norms, **counts)

    def run() -> Tensor:
        out = heads.clone()
        place(out, cos, sin, slots, pages)
        return torch.cat((out[:, : sizes.heads], pages[0].flip(0).flatten(1, 2)), 1)

    def reference() -> Tensor:
        weight = norms[0].weight
        assert weight is not None
        wide = heads.double()
        normed = F.rms_norm(wide, (sizes.head_dim,), weight.double(), 1e-6)
        normed = normed.to(inputs.dtype).double()
        turned, half = normed[..., :dim], dim // 2
        swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
        turned = turned * cos.double() + swapped * sin.double()
        rotated = torch.cat((turned, normed[..., dim:]), -1)
        return torch.cat((rotated[:, :num_rotated], wide[:, num_rotated:]), 1)

    return KernelCase("heads", run, reference, 4 * heads.nbytes, 0, inputs.tolerance)


def _gate(inputs: CaseInputs) -> KernelCase:
    from baton_worker.kernels.triton.gated import gated

    both = inputs.random(inputs.sizes.prompt, 2 * inputs.sizes.hidden)

    def reference() -> Tensor:
        gate, up = both.double().chunk(2, -1)
        return F.silu(gate) * up

    run = partial(gated, both, "silu")
    return KernelCase("gate", run, reference, both.nbytes * 3 // 2, 0, inputs.tolerance)


def _kv_write(inputs: CaseInputs) -> KernelCase:
    from baton_worker.kernels.triton.kv_write import put

    sizes = inputs.sizes
    rows = inputs.random(sizes.prompt, 2 * sizes.kv_heads, sizes.head_dim)
    count = -(-sizes.prompt // sizes.page_size)
    pages = torch.zeros(
        count, sizes.page_size, 2, sizes.kv_heads, sizes.head_dim, dtype=inputs.dtype
    ).to(inputs.device)
    slots = torch.randperm(
        count * sizes.page_size, generator=inputs.generator, device=inputs.device
    )[: sizes.prompt]

    def run() -> Tensor:
        put(rows, slots, pages, None)
        return pages

    def reference() -> Tensor:
        expected = torch.zeros(pages.shape, dtype=torch.float64, device=inputs.device)
        expected.view(-1, 2 * sizes.kv_heads, sizes.head_dim)[slots] = rows.double()
        return expected

    return KernelCase("kv_write", run, reference, 2 * rows.nbytes, 0)


def _top_k(inputs: CaseInputs) -> KernelCase:
    from baton_worker.kernels.triton.top_k import top_k_softmax

    logits = inputs.random(inputs.sizes.prompt, inputs.sizes.experts).float()
    count = inputs.sizes.top_k

    def reference() -> Tensor:
        return logits.double().softmax(-1).topk(count, -1).values

    run = lambda: top_k_softmax(logits, count)[0]  # noqa: E731
    return KernelCase("top_k_softmax", run, reference, logits.nbytes, 0, 1e-5)
