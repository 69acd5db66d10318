"""Every Triton kernel on inputs of real layers, with a reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from baton.protocol import Sampling
from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.bench.gpu import recurrent_cases
from baton_worker.bench.gpu.kernel_case import KernelCase, Sizes
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.fp8 import dequantise as fp8_floats
from baton_worker.kernels.gptq import GptqWeight
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.moe.triton import TritonExperts
from baton_worker.kernels.mxfp4 import Mxfp4Weight
from baton_worker.kernels.packed_linear import PackedLinear
from baton_worker.kernels.packed_weights import pack
from baton_worker.kernels.quantized_weights import quantise
from baton_worker.kernels.rope import HeadNorm
from baton_worker.kernels.scaled_mm import ScaledMmLinear
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.sampling import PARAMETERS, Sampler, device_columns, fill, truncations

_SEED = 0


def cases(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> Iterator[KernelCase]:
    """All kernels, one after the other: inputs of one are freed before those of the next."""
    maker = _Maker(device, dtype, sizes)
    for make in (maker.norm, maker.rope, maker.kv_write, maker.heads, maker.gate, maker.top_k):
        yield make()
    products = (maker.floats, maker.gptq, maker.packed, maker.fp8, maker.scaled_mm, maker.experts)
    for tokens in (1, sizes.rows, sizes.prompt):
        for build in products:
            yield build(tokens)
        for format in _PACKED:
            yield maker.experts(tokens, format)
    for tokens in (sizes.rows, sizes.prompt):
        yield from maker.tiles(tokens)
    yield maker.attention("decode", [1] * sizes.rows, [sizes.context - 1] * sizes.rows)
    yield maker.attention("prompt", [sizes.prompt], [0])
    mixed = [sizes.prompt // 2, *[1] * sizes.rows]
    yield maker.attention("mixed", mixed, [sizes.context] * len(mixed))
    yield maker.attention("window", [1] * sizes.rows, [sizes.context - 1] * sizes.rows, window=17)
    for name, sampling in _SAMPLINGS.items():
        yield maker.sampling(name, sampling)
    yield from recurrent_cases.cases(device, dtype, sizes)


_SAMPLINGS = {
    "greedy": Sampling(1, temperature=0.0),
    "plain": Sampling(1),
    "top_p": Sampling(1, temperature=0.8, top_p=0.9, top_k=50),
}


def _fp8_reference(x: Tensor, weight: Fp8Weight) -> Tensor:
    codes, scales = weight.inputs.quantise(x)
    inputs = fp8_floats(codes, scales, (1, weight.inputs.group or x.shape[1])).double()
    return inputs @ weight.dequantise().double().T


def _as_int4(weight: Tensor) -> GptqWeight:
    groups = torch.unflatten(weight.float().cpu(), 1, (-1, min(128, weight.shape[1])))
    scales = groups.abs().amax(-1) / 7
    codes = (groups / scales[..., None]).round().add(8).to(torch.uint8).flatten(1)
    zeros = torch.full(scales.T.shape, 8, dtype=torch.int16)
    return GptqWeight.of(codes, 4, scales.T.half(), zeros).to(weight.device)


def _as_mxfp4(weight: Tensor) -> Mxfp4Weight:
    blocks = quantise(weight.cpu(), "mxfp4")
    codes = blocks.codes.view(torch.uint8).view(len(weight), -1, 16, 2)
    return Mxfp4Weight(codes[..., 0] | codes[..., 1] << 4, blocks.scales).to(weight.device)


def _as_fp8(weight: Tensor) -> Fp8Weight:
    codes, scales = Inputs().quantise(weight)
    return Fp8Weight(codes, scales, (1, weight.shape[1]), Inputs())


_PACKED: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int4": _as_int4,
    "mxfp4": _as_mxfp4,
    "fp8": _as_fp8,
}
"""What rounds a weight to a format of experts."""


class _Maker:
    """Inputs of one dtype on one device."""

    def __init__(self, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> None:
        self.device, self.dtype, self.sizes = device, dtype, sizes
        self._generator = torch.Generator(device).manual_seed(_SEED)
        self._near = 1e-5 if dtype is torch.float32 else 2e-2

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=self._generator, device=self.device)
        return values.mul_(scale).to(self.dtype)

    def norm(self) -> KernelCase:
        from baton_worker.kernels.triton.norm import norm

        sizes = self.sizes
        x, residual = (self.random(sizes.prompt, sizes.hidden) for _ in range(2))
        weight = self.random(sizes.hidden)

        def reference() -> Tensor:
            total = (x.double() + residual.double()).to(self.dtype).double()
            return F.rms_norm(total, (sizes.hidden,), weight.double(), 1e-6)

        run = lambda: norm(x, residual, weight, None, 1e-6)[0]  # noqa: E731
        return KernelCase("add_rms_norm", run, reference, 4 * x.nbytes, 0, self._near)

    def rope(self) -> KernelCase:
        from baton_worker.kernels.triton.rope import rotate_

        sizes, half = self.sizes, self.sizes.head_dim // 2
        heads = self.random(sizes.prompt, sizes.heads, sizes.head_dim)
        angles = torch.arange(sizes.prompt, device=self.device)[:, None, None] * 0.01
        angles = angles.expand(-1, 1, sizes.head_dim)
        sign = torch.ones(sizes.head_dim, device=self.device)
        sign[:half] = -1
        cos = angles.cos().to(self.dtype).contiguous()
        sin = (angles.sin() * sign).to(self.dtype).contiguous()

        def run() -> Tensor:
            out = heads.clone()
            rotate_(out, cos, sin, interleaved=False)
            return out

        def reference() -> Tensor:
            wide = heads.double()
            swapped = torch.cat((wide[..., half:], wide[..., :half]), -1)
            return wide * cos.double() + swapped * sin.double()

        return KernelCase("rope", run, reference, 4 * heads.nbytes, 0, self._near)

    def heads(self) -> KernelCase:
        """Norms of heads, rotation and KV write; half of the channels are rotated."""
        from baton_worker.kernels.triton.heads import TritonHeads

        sizes, dim = self.sizes, self.sizes.head_dim // 2
        shape, num_rotated = (
            (sizes.heads, sizes.kv_heads, sizes.head_dim),
            sizes.heads + sizes.kv_heads,
        )
        heads = self.random(sizes.prompt, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim)
        cos, sin = (self.random(sizes.prompt, 1, dim) for _ in range(2))
        norms = (HeadNorm(self.random(sizes.head_dim), 1e-6),) * 2
        pages = torch.zeros(1, sizes.prompt, 2, *shape[1:], dtype=self.dtype, device=self.device)
        slots = torch.arange(sizes.prompt, device=self.device).flip(0)
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
            normed = normed.to(self.dtype).double()
            turned, half = normed[..., :dim], dim // 2
            swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
            turned = turned * cos.double() + swapped * sin.double()
            rotated = torch.cat((turned, normed[..., dim:]), -1)
            return torch.cat((rotated[:, :num_rotated], wide[:, num_rotated:]), 1)

        return KernelCase("heads", run, reference, 4 * heads.nbytes, 0, self._near)

    def gate(self) -> KernelCase:
        from baton_worker.kernels.triton.gated import gated

        both = self.random(self.sizes.prompt, 2 * self.sizes.hidden)

        def reference() -> Tensor:
            gate, up = both.double().chunk(2, -1)
            return F.silu(gate) * up

        run = partial(gated, both, "silu")
        return KernelCase("gate", run, reference, both.nbytes * 3 // 2, 0, self._near)

    def kv_write(self) -> KernelCase:
        from baton_worker.kernels.triton.kv_write import put

        sizes = self.sizes
        rows = self.random(sizes.prompt, 2 * sizes.kv_heads, sizes.head_dim)
        count = -(-sizes.prompt // sizes.page_size)
        pages = torch.zeros(
            count, sizes.page_size, 2, sizes.kv_heads, sizes.head_dim, dtype=self.dtype
        ).to(self.device)
        slots = torch.randperm(
            count * sizes.page_size, generator=self._generator, device=self.device
        )[: sizes.prompt]

        def run() -> Tensor:
            put(rows, slots, pages, None)
            return pages

        def reference() -> Tensor:
            expected = torch.zeros(pages.shape, dtype=torch.float64, device=self.device)
            expected.view(-1, 2 * sizes.kv_heads, sizes.head_dim)[slots] = rows.double()
            return expected

        return KernelCase("kv_write", run, reference, 2 * rows.nbytes, 0)

    def top_k(self) -> KernelCase:
        from baton_worker.kernels.triton.top_k import top_k_softmax

        logits = self.random(self.sizes.prompt, self.sizes.experts).float()
        count = self.sizes.top_k

        def reference() -> Tensor:
            return logits.double().softmax(-1).topk(count, -1).values

        run = lambda: top_k_softmax(logits, count)[0]  # noqa: E731
        return KernelCase("top_k_softmax", run, reference, logits.nbytes, 0, 1e-5)

    def floats(self, tokens: int) -> KernelCase:
        """The product of a library, which those of packed weights are beside."""
        hidden = self.sizes.hidden
        weight, x = self.random(hidden, hidden, scale=hidden**-0.5), self.random(tokens, hidden)
        run = partial(F.linear, x, weight)
        reference = lambda: x.double() @ weight.double().T  # noqa: E731
        return self._product(f"floats, {tokens} tokens", run, reference, x, weight.nbytes)

    def gptq(self, tokens: int) -> KernelCase:
        """In the words of a checkpoint, as weights of 2 and 3 bits are multiplied."""
        from baton_worker.kernels.triton.gptq import product

        weight, x, reference = self._int4(tokens)
        run = partial(product, x, weight)
        return self._product(f"gptq int4, {tokens} tokens", run, reference, x, weight.nbytes)

    def packed(self, tokens: int) -> KernelCase:
        """In the layout that weights of 4 and 8 bits are brought to."""
        weight, x, reference = self._int4(tokens)
        layer = PackedLinear([weight], None, x)
        run = partial(layer, x)
        return self._product(f"packed int4, {tokens} tokens", run, reference, x, layer.nbytes)

    def tiles(self, tokens: int) -> Iterator[KernelCase]:
        """The same with each tile that the tables have for many rows."""
        from baton_worker.kernels.triton import grouped, product_tiles, row_tiles

        weight, x, reference = self._int4(tokens)
        packed = pack([weight], self.device)
        for tile in (tile for tiles in product_tiles.PACKED.values() for tile in tiles):
            if tile.rows > row_tiles.FEW and product_tiles.has_room_for(tile, x):
                run = partial(grouped.product, x, packed, tile=tile)
                name = f"packed int4, {tokens} tokens, {tile}"
                yield self._product(name, run, reference, x, packed.nbytes)

    def _int4(self, tokens: int) -> tuple[GptqWeight, Tensor, Callable[[], Tensor]]:
        """A weight, inputs and the product in float64 with what the weight means."""
        hidden, groups = self.sizes.hidden, self.sizes.hidden // self.sizes.group
        like = {"generator": self._generator, "device": self.device}
        codes = torch.randint(0, 16, (hidden, hidden), dtype=torch.uint8, **like)  # type: ignore[call-overload]
        scales = self.random(groups, hidden, scale=0.02).float()
        zeros = torch.full((groups, hidden), 8, dtype=torch.int16)
        weight = GptqWeight.of(codes.cpu(), 4, scales.cpu(), zeros).to(self.device)
        x = self.random(tokens, hidden)

        def reference() -> Tensor:
            wide = (codes.double().unflatten(1, (groups, -1)) - 8) * scales.double().T[..., None]
            product: Tensor = x.double() @ wide.flatten(1).double().T
            return product

        return weight, x, reference

    def fp8(self, tokens: int) -> KernelCase:
        from baton_worker.kernels.triton.fp8 import product

        weight, x = self._fp8_weight(self.sizes.group), self.random(tokens, self.sizes.hidden)
        run, reference = partial(product, x, weight), partial(_fp8_reference, x, weight)
        return self._product(f"fp8 w8a8, {tokens} tokens", run, reference, x, weight.nbytes)

    def scaled_mm(self, tokens: int) -> KernelCase:
        """By block where libraries have that, on a GPU; else by row."""
        by_block = self.device.type == "cuda"
        weight = self._fp8_weight(self.sizes.group if by_block else None)
        x = self.random(tokens, self.sizes.hidden)
        run = partial(ScaledMmLinear([weight], None, self.dtype, 0), x)
        reference = partial(_fp8_reference, x, weight)
        return self._product(f"fp8 scaled_mm, {tokens} tokens", run, reference, x, weight.nbytes)

    def _fp8_weight(self, group: int | None) -> Fp8Weight:
        """With scales by block, or by row."""
        hidden = self.sizes.hidden
        codes = self.random(hidden, hidden, scale=50.0).to(torch.float8_e4m3fn)
        block = (group, group) if group else (1, hidden)
        counts = [hidden // width for width in block]
        scales = torch.rand(*counts, device=self.device) * 1e-3
        return Fp8Weight(codes, scales, block, Inputs(group))

    def _product(
        self,
        name: str,
        run: Callable[[], Tensor],
        reference: Callable[[], Tensor],
        x: Tensor,
        nbytes: int,
    ) -> KernelCase:
        flops = 2 * len(x) * self.sizes.hidden**2
        return KernelCase(name, run, reference, nbytes + 2 * x.nbytes, flops, self._near)

    def experts(self, tokens: int, format: str = "floats") -> KernelCase:
        """Routed experts, as floats or packed: "int4", "mxfp4" or "fp8"."""
        sizes, size = self.sizes, self.sizes.expert_size
        hidden = sizes.hidden // 2
        layer = Experts(
            self.random(sizes.experts, 2 * size, hidden, scale=hidden**-0.5),
            self.random(sizes.experts, hidden, size, scale=size**-0.5),
            None,
            None,
            lambda inner: F.silu(inner[..., :size]) * inner[..., size:],
        )
        first, second = layer.gate_up, layer.down
        if format != "floats":
            # The same weight for each, in memory of its own.
            one, other = (_PACKED[format](stack[0]) for stack in (first, second))
            first, second = (
                weight.dequantise().expand(sizes.experts, -1, -1) for weight in (one, other)
            )
            count = sizes.experts
            layer = replace(layer, packed_gate_up=[(one,)] * count, packed_down=[(other,)] * count)
        kernel = TritonExperts(layer)
        x = self.random(tokens, hidden)
        order = torch.rand(tokens, sizes.experts, generator=self._generator, device=self.device)
        chosen = order.argsort(-1)[:, : sizes.top_k]
        weights = torch.full((tokens, sizes.top_k), 1 / sizes.top_k, device=self.device)

        def reference() -> Tensor:
            out = torch.zeros(tokens, hidden, dtype=torch.float64, device=self.device)
            for expert in range(sizes.experts):
                token, slot = (chosen == expert).nonzero(as_tuple=True)
                inner = layer.gate(x[token].double() @ first[expert].double().T)
                back = inner @ second[expert].double().T
                out.index_add_(0, token, back * weights[token, slot, None].double())
            return out

        used = min(sizes.experts, tokens * sizes.top_k)
        nbytes = kernel.nbytes * used // sizes.experts
        flops = 2 * tokens * sizes.top_k * 3 * size * hidden
        run = partial(kernel, x, chosen, weights)
        name = f"experts in {format}, {tokens} tokens"
        near = 0.1 if format == "fp8" else self._near  # Their inputs are rounded.
        return KernelCase(name, run, reference, nbytes, flops, near)

    def attention(
        self, name: str, counts: list[int], starts: list[int], window: int | None = None
    ) -> KernelCase:
        sizes = self.sizes
        lengths = [count + start for count, start in zip(counts, starts, strict=True)]
        each = [-(-length // sizes.page_size) for length in lengths]
        order = torch.randperm(sum(each) + 1, generator=torch.Generator().manual_seed(_SEED))
        tables = [part.tolist() for part in torch.split(order[: sum(each)], each)]
        shape = (sum(each) + 1, sizes.page_size, 2, sizes.kv_heads, sizes.head_dim)
        pages = self.random(*shape)
        pages[order[-1]] = torch.nan  # Of no row: a kernel that reads it shows it.
        for table, length in zip(tables, lengths, strict=True):
            if rest := length % sizes.page_size:
                pages[table[-1], rest:] = torch.nan
        query = self.random(sum(counts), sizes.heads, sizes.head_dim)
        spec = AttentionSpec(
            sizes.heads,
            sizes.kv_heads,
            sizes.head_dim,
            sizes.head_dim**-0.5,
            window,
            self.dtype,
            self.device,
        )
        batch = AttentionBatch.build(counts, starts, tables, sizes.page_size, self.device)
        backend, twin = TritonBackend(), ReferenceBackend()
        plan = backend.plan(batch, spec)

        def reference() -> Tensor:
            wide = torch.nan_to_num(pages.double(), 0.0)
            return twin.forward(twin.plan(batch, spec), query.double(), wide)

        num_keys = sum(min(n, window or n) for n in lengths)
        nbytes = 2 * query.nbytes + num_keys * 2 * sizes.kv_heads * sizes.head_dim * pages.itemsize
        pairs = sum(
            count * (start + (count + 1) / 2) for count, start in zip(counts, starts, strict=True)
        )
        flops = int(4 * pairs * sizes.heads * sizes.head_dim) if window is None else 0
        run = partial(backend.forward, plan, query, pages)
        return KernelCase(f"attention, {name}", run, reference, nbytes, flops, self._near)

    def sampling(self, name: str, sampling: Sampling) -> KernelCase:
        sizes = self.sizes
        logits = self.random(sizes.rows, sizes.vocab, scale=3.0).float()
        parameters = np.zeros(sizes.rows, PARAMETERS)
        for row in range(sizes.rows):
            fill(parameters[row], sampling)
            parameters[row]["key_low"] = row
        index = np.arange(sizes.rows)
        columns = {
            name: torch.from_numpy(values).to(self.device)
            for name, values in device_columns(parameters).items()
        }
        there = torch.from_numpy(index).to(self.device)
        needed = truncations(parameters)
        launch = partial(Sampler.launch, greedy=name == "greedy", truncations=needed)

        def run() -> Tensor:
            return launch(logits, columns, there)[0].long()

        def reference() -> Tensor:
            tokens = Sampler().sample(logits.cpu(), parameters, index)
            return torch.from_numpy(tokens).to(self.device).long()

        return KernelCase(f"sampling, {name}", run, reference, logits.nbytes, 0)
