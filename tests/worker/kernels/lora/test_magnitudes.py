"""Decomposed adapters (DoRA) of a layer against the definition, with weights of every kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.linear import OneDnnLinear, PlainLinear, has_kernel
from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.kernels.lora.magnitudes import output_factors
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import GatedLinear, Linear
from tests.support.worker.quantized_weights import WEIGHTS, K, N
from tests.support.worker.random_products import some

CPU, HALF = torch.device("cpu"), N // 2
SLOTS = np.array([0, -1, 1, 1, 0, -1, 2])
SCALE, RANK = 1.5, 4


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def built(dtype: torch.dtype, scheme: str | None, *, gate: bool) -> tuple[Linear, Tensor]:
    """A layer of two parts, and its weight in float32."""
    context = BuildContext(CPU, dtype, adapters=TokenAdapters(3, 64, CPU))
    layer = Linear(K, {"gate": HALF, "up": HALF}, context, bias=True)
    if gate:
        layer = GatedLinear(K, HALF, context, gated, fused="silu", bias=True)
    assert layer.weight is not None and layer.bias is not None
    layer.bias.copy_(torch.linspace(-1, 1, N))
    wide = some(N, K, seed=1).to(dtype).float()
    if scheme is not None:
        stored = WEIGHTS[scheme]()
        wide = stored.dequantise()
        stored = stored if has_kernel(stored, layer.like) else stored.blocks() or stored
        for part, rows in (("gate", slice(HALF)), ("up", slice(HALF, N))):
            layer.load_quantized(f"{part}.weight", stored[rows])
    layer.weight.copy_(wide)
    layer.process_weights_after_loading()
    return layer, wide


def layers() -> Iterator[tuple[str, Linear, Tensor]]:
    """Every scheme, floats, and kernels that leave factors to the layer."""
    for gate in (False, True):
        yield "bfloat16", *built(torch.bfloat16, None, gate=gate)
        for scheme in (None, *WEIGHTS):
            yield str(scheme), *built(torch.float32, scheme, gate=gate)
    for kind in (PlainLinear, OneDnnLinear):
        layer, wide = built(torch.float32, None, gate=False)
        if kind.refuses(wide) is None:
            layer._kernel = kind(wide, layer.bias)
            yield kind.__name__, layer, wide


def pairs(wide: Tensor, dtype: torch.dtype, slot: int) -> list[LoraPair | None]:
    """Slot 0 decomposes both parts, slot 1 the second and leaves the first, slot 2 none."""
    found = list[LoraPair | None]()
    for part in range(2):
        a = some(RANK, K, dtype=dtype, seed=10 * slot + part) / K**0.5
        b = some(RANK, HALF, dtype=dtype, seed=50 + 10 * slot + part)
        norms = wide[part * HALF :][:HALF].norm(dim=1)
        grown = norms * torch.linspace(0.7, 1.4, HALF) if slot < 2 else None
        found.append(LoraPair(a, b * norms.mean().to(dtype), SCALE, grown))
    return [None, found[1]] if slot == 1 else found


def adapted(wide: Tensor, given: list[LoraPair | None]) -> Tensor:
    """The weight that an adapter makes of one, by the definition."""
    parts = []
    for rows, pair in zip(wide.chunk(2), given, strict=True):
        if pair is None:
            parts.append(rows)
            continue
        total = rows + pair.scale * pair.b.float().T @ pair.a.float()
        if pair.magnitude is not None:
            total = total * (pair.magnitude / total.norm(dim=1))[:, None]
        parts.append(total)
    return torch.cat(parts)


@pytest.mark.row("F11.03", "F11.05", "F03.33")
def test_every_kernel_multiplies_the_decomposed_weight() -> None:
    for name, layer, wide in layers():
        dtype, column = layer.like.dtype, layer._adapters
        assert column is not None and layer.bias is not None
        weights = {-1: wide}
        for slot in range(3):
            given = pairs(wide, dtype, slot)
            layer.put_adapter(slot, given)
            weights[slot] = adapted(wide, given)
            column.eager |= {slot} if layer.is_eager(slot) else set()
        x = some(len(SLOTS), K, dtype=dtype, seed=2) / K**0.5
        column.write(SLOTS)
        ours = layer(x)
        wanted = torch.stack([weights[s] @ r.float() for s, r in zip(SLOTS, x, strict=True)])
        wanted = wanted + layer.bias.float()
        if isinstance(layer, GatedLinear):
            wanted = gated(*wanted.chunk(2, -1))
        error = float((ours.float() - wanted).abs().max() / wanted.std())
        assert error < (0.05 if dtype is torch.bfloat16 or name == "int8" else 2e-3), name
        for row in range(len(SLOTS)) if name != "PlainLinear" else ():
            column.write(SLOTS[row : row + 1])
            assert torch.equal(layer(x[row : row + 1])[0], ours[row]), f"{name}: neighbours"
        # A slot that is taken over has no factors of the one before.
        plain, fresh = pairs(wide, dtype, 2), built_like(layer, wide)
        for one in (layer, fresh):
            one.put_adapter(0, plain)
        column.write(SLOTS[:1])
        assert fresh._adapters is not None
        fresh._adapters.write(SLOTS[:1])
        assert torch.equal(layer(x[:1]), fresh(x[:1])) and not layer.is_eager(0), name


def built_like(layer: Linear, wide: Tensor) -> Linear:
    """The layer as it was before adapters came; kernels have no state but factors."""
    fresh, _ = built(layer.like.dtype, None, gate=isinstance(layer, GatedLinear))
    fresh._kernel = layer._kernel
    return fresh


def test_norms_need_no_sum_of_both_weights() -> None:
    wide, [first, second] = some(N, K, seed=1), pairs(some(N, K, seed=1), torch.float32, 0)
    assert first is not None and second is not None and first.magnitude is not None
    squares = wide.square().sum(1)
    found = output_factors([first, second], [HALF, HALF], squares, lambda x: x @ wide.T)
    total = wide[:HALF] + SCALE * first.b.T @ first.a
    assert found is not None
    torch.testing.assert_close(found[:HALF], first.magnitude / total.norm(dim=1))
    plain = first._replace(magnitude=None)
    assert output_factors([None, plain], [HALF, HALF], squares, lambda x: x) is None
