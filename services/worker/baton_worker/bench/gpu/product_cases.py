"""Products of linear layers, with weights in floats and packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.bench.gpu.case_inputs import CaseInputs
from baton_worker.bench.gpu.kernel_case import KernelCase
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.fp8 import dequantise as fp8_floats
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.packed_linear import PackedLinear
from baton_worker.kernels.packed_weights import pack
from baton_worker.kernels.scaled_mm import ScaledMmLinear


def cases(inputs: CaseInputs, tokens: int) -> Iterator[KernelCase]:
    """Each kind of weight."""
    for case in (_floats, _gptq, _packed, _fp8, _scaled_mm):
        yield case(inputs, tokens)


def _floats(inputs: CaseInputs, tokens: int) -> KernelCase:
    """The product of a library, which those of packed weights are beside."""
    hidden = inputs.sizes.hidden
    weight, x = inputs.random(hidden, hidden, scale=hidden**-0.5), inputs.random(tokens, hidden)
    run = partial(F.linear, x, weight)
    reference = lambda: x.double() @ weight.double().T  # noqa: E731
    return _product(inputs, f"floats, {tokens} tokens", run, reference, x, weight.nbytes)


def _gptq(inputs: CaseInputs, tokens: int) -> KernelCase:
    """In the words of a checkpoint, as weights of 2 and 3 bits are multiplied."""
    from baton_worker.kernels.triton.gptq import product

    weight, x, reference = _int4(inputs, tokens)
    run = partial(product, x, weight)
    return _product(inputs, f"gptq int4, {tokens} tokens", run, reference, x, weight.nbytes)


def _packed(inputs: CaseInputs, tokens: int) -> KernelCase:
    """In the layout that weights of 4 and 8 bits are brought to."""
    weight, x, reference = _int4(inputs, tokens)
    layer = PackedLinear([weight], None, x)
    run = partial(layer, x)
    return _product(inputs, f"packed int4, {tokens} tokens", run, reference, x, layer.nbytes)


def tiles(inputs: CaseInputs, tokens: int) -> Iterator[KernelCase]:
    """The same with each tile that the tables have for many rows."""
    from baton_worker.kernels.triton import grouped, product_tiles, row_tiles

    weight, x, reference = _int4(inputs, tokens)
    packed = pack([weight], inputs.device)
    for tile in (tile for tiles in product_tiles.PACKED.values() for tile in tiles):
        if tile.rows > row_tiles.FEW and product_tiles.has_room_for(tile, x):
            run = partial(grouped.product, x, packed, tile=tile)
            name = f"packed int4, {tokens} tokens, {tile}"
            yield _product(inputs, name, run, reference, x, packed.nbytes)


def _int4(inputs: CaseInputs, tokens: int) -> tuple[GptqWeight, Tensor, Callable[[], Tensor]]:
    """A weight, inputs and the product in float64 with what the weight means."""
    hidden, groups = inputs.sizes.hidden, inputs.sizes.hidden // inputs.sizes.group
    like = {"generator": inputs.generator, "device": inputs.device}
    codes = torch.randint(0, 16, (hidden, hidden), dtype=torch.uint8, **like)  # type: ignore[call-overload]
    scales = inputs.random(groups, hidden, scale=0.02).float()
    zeros = torch.full((groups, hidden), 8, dtype=torch.int16)
    weight = GptqWeight.of(codes.cpu(), 4, scales.cpu(), zeros).to(inputs.device)
    x = inputs.random(tokens, hidden)

    def reference() -> Tensor:
        wide = (codes.double().unflatten(1, (groups, -1)) - 8) * scales.double().T[..., None]
        product: Tensor = x.double() @ wide.flatten(1).double().T
        return product

    return weight, x, reference


def _fp8(inputs: CaseInputs, tokens: int) -> KernelCase:
    from baton_worker.kernels.triton.fp8 import product

    weight, x = _fp8_weight(inputs, inputs.sizes.group), inputs.random(tokens, inputs.sizes.hidden)
    run, reference = partial(product, x, weight), partial(_fp8_reference, x, weight)
    return _product(inputs, f"fp8 w8a8, {tokens} tokens", run, reference, x, weight.nbytes)


def _scaled_mm(inputs: CaseInputs, tokens: int) -> KernelCase:
    """By block where libraries have that, on a GPU; else by row."""
    by_block = inputs.device.type == "cuda"
    weight = _fp8_weight(inputs, inputs.sizes.group if by_block else None)
    x = inputs.random(tokens, inputs.sizes.hidden)
    run = partial(ScaledMmLinear([weight], None, inputs.dtype, 0), x)
    reference = partial(_fp8_reference, x, weight)
    return _product(inputs, f"fp8 scaled_mm, {tokens} tokens", run, reference, x, weight.nbytes)


def _fp8_weight(inputs: CaseInputs, group: int | None) -> Fp8Weight:
    """With scales by block, or by row."""
    hidden = inputs.sizes.hidden
    codes = inputs.random(hidden, hidden, scale=50.0).to(torch.float8_e4m3fn)
    block = (group, group) if group else (1, hidden)
    counts = [hidden // width for width in block]
    scales = torch.rand(*counts, device=inputs.device) * 1e-3
    return Fp8Weight(codes, scales, block, Inputs(group))


def _fp8_reference(x: Tensor, weight: Fp8Weight) -> Tensor:
    codes, scales = weight.inputs.quantise(x)
    inputs = fp8_floats(codes, scales, (1, weight.inputs.group or x.shape[1])).double()
    return inputs @ weight.dequantise().double().T


def _product(
    inputs: CaseInputs,
    name: str,
    run: Callable[[], Tensor],
    reference: Callable[[], Tensor],
    x: Tensor,
    nbytes: int,
) -> KernelCase:
    flops = 2 * len(x) * inputs.sizes.hidden**2
    return KernelCase(name, run, reference, nbytes + 2 * x.nbytes, flops, inputs.tolerance)
