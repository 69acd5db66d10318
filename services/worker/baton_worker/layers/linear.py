"""Linear layers that may fuse several checkpoint tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import (
    LinearKernel,
    LinearSpec,
    LinearWeight,
    PlainLinear,
    choose,
    has_kernel,
)
from baton_worker.kernels.lora import LoraKernel, LoraPair, PlainLora, lora_kernel
from baton_worker.kernels.lora.magnitudes import output_factors, row_squares, with_factors
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.kernels.triton import runs
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer


class Linear(Layer):
    """y = x W^T + b. `parts` maps roles to row counts: {"query": 576, "key": 192, "value": 192}
    is one matrix product over three checkpoint tensors."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    out_dtype: torch.dtype | None = None
    """Preferred output dtype of a subclass, see `LinearSpec`."""
    gate: str | None = None
    """The gate that a subclass leaves to the kernel if that has it, see `LinearSpec`."""
    quantised_as: str | None = None
    """The kind in `baton_worker.kernels.quantized_weights.KINDS` used to quantise weights at load;
    None keeps them unquantised."""
    processed = ("weight", "_kernel", "_weight_bytes", "_row_squares")
    tied = False
    """Whether another layer has the weight too."""

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        context: BuildContext,
        *,
        bias: bool = False,
        unbiased: Collection[str] = (),
    ) -> None:
        """`unbiased`: parts without a bias, where the others have one."""
        super().__init__()
        self.in_features, out_features = in_features, sum(parts.values())
        self._parts = {context.name(role): rows for role, rows in parts.items()}
        self.weight = context.staged(out_features, in_features)
        self.like: Tensor = torch.empty(0, dtype=context.dtype, device=context.device)
        self.bias = context.empty(out_features) if bias else None
        self._unbiased = frozenset(context.name(role) for role in unbiased)
        if self.bias is not None and unbiased:
            self.bias.zero_()
        self.int8_inputs, self._row_block = context.int8_inputs, context.row_block
        self._kernel: LinearKernel = PlainLinear(self.weight, self.bias, self._row_block)
        self._quantized = dict[str, QuantizedWeight]()
        self._weight_bytes = 0
        self._adapters = context.adapters
        self.lora: LoraKernel | None = None
        if context.adapters is not None:
            sizes = list(parts.values())
            self.lora = lora_kernel(in_features, sizes, context.adapters, self.like, self.out_dtype)
        self._row_squares = torch.empty(0)
        """See `kernels.lora.magnitudes`; where adapters are served."""
        self.sum_over_ranks: Callable[[Tensor], Tensor] | None = None
        """Set where each rank has some columns of the weight."""
        self._factors = dict[int, Tensor]()
        """Factors of outputs by number of an adapter, where the kernel does not apply them."""

    @property
    def lora_parts(self) -> dict[str, int]:
        """The modules that an adapter may name, and their rows, in the order of `lora.put`; empty
        where adapters are not served."""
        return {} if self.lora is None else self._parts

    def put_adapter(self, slot: int, pairs: Sequence[LoraPair | None]) -> None:
        """Adapter number `slot` has these products from now on; see `LoraKernel.put`. All ranks of
        a model call it together."""
        assert self.lora is not None
        sizes = list(self._parts.values())
        sums, total = self._kernel.sums, self.sum_over_ranks
        factors = output_factors(pairs, sizes, self._row_squares, sums, total)
        if factors is not None:
            pairs = with_factors(pairs, sizes, factors)
        self.lora.put(slot, pairs)
        self._factors.pop(slot, None)
        if not self._kernel.put_factors(slot, factors) and factors is not None:
            self._factors[slot] = factors

    def is_eager(self, slot: int) -> bool:
        """True if the host looks up which rows have this adapter."""
        return slot in self._factors

    @property
    def capture_blocker(self) -> str | None:
        """See `Layer`."""
        if isinstance(self.lora, PlainLora):
            return "the host looks up which adapters a step has"
        return None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """One weight, and a bias if there is one, per part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                slices = torch.split(parameter, list(self._parts.values()))
                for name, rows in zip(self._parts, slices, strict=True):
                    if suffix == "weight" or name not in self._unbiased:
                        yield f"{name}.{suffix}", rows

    def load_quantized(self, name: str, weight: QuantizedWeight) -> bool:
        """Take a part's weight if a kernel can run it as stored."""
        part, _, suffix = name.rpartition(".")
        current = self.weight
        if suffix != "weight" or part not in self._parts or current is None:
            return False
        if weight.shape != (self._parts[part], current.shape[1]) or not has_kernel(
            weight, self.like
        ):
            return False
        self._quantized[part] = weight
        return True

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight; 0 while the parameter is used unpacked."""
        return self._weight_bytes

    def process_weights_after_loading(self) -> None:
        """Pack the weight in the device's preferred layout and drop the original."""
        original = self.weight
        weights: Sequence[LinearWeight] = self._all_quantized()
        if not weights:
            self._unstage()
            weights = [self._own()]
        self.single_use = weights[0] is not original or self.quantised_as is not None
        rows = None if self._adapters is None else self._adapters.slots
        if self.lora is not None:
            self._row_squares = row_squares(weights, self.like.device)
        spec = LinearSpec(
            weights, self.bias, self.like, self.out_dtype, self.gate, self._row_block, rows
        )
        self._kernel = choose(spec)
        if self._kernel.nbytes:
            self._weight_bytes, self.weight = self._kernel.nbytes, None

    def _all_quantized(self) -> list[QuantizedWeight]:
        """Quantised weights by part; empty unless every part has one."""
        quantized, self._quantized = self._quantized, {}
        if len(quantized) == len(self._parts):
            return [quantized[part] for part in self._parts]
        # The other parts are floats, and one kernel runs the fused weight.
        for name, rows in self.weight_targets():
            if (part := name.removesuffix(".weight")) in quantized:
                rows.copy_(quantized[part].dequantise())
        return []

    def _unstage(self) -> None:
        """Move the weight to where it runs; see `BuildContext.staging`."""
        assert self.weight is not None
        if self.weight.device != self.like.device:
            self.weight = nn.Parameter(self.weight.to(self.like.device), requires_grad=False)

    def _own(self) -> Tensor | Rounding:
        """The weight as it was filled; where it is to be quantised and no kernel runs the kind, as
        that would round it."""
        assert self.weight is not None
        kind = self.quantised_as
        if kind is None or self.weight.shape[1] % KINDS[kind].multiple:
            return self.weight
        rounding = Rounding(self.weight, kind)
        if has_kernel(rounding, self.like):
            return rounding
        if self.tied:
            self.weight = nn.Parameter(torch.empty_like(self.weight), requires_grad=False)
        rounding.into(self.weight)
        return self.weight

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, out_features], plus `residual` of that shape."""
        y = self._product(x, residual)
        return y if self.lora is None else self.lora.add(x, y)

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The product of the weight, with the factors of adapters."""
        y = self._kernel(x, residual)
        if self._factors and self._adapters is not None:
            for slot, at in self._adapters.rows(len(x), x.device):
                if (factors := self._factors.get(slot)) is not None:
                    more = self._kernel.sums(x[at]) * (factors - 1)
                    y = y.index_copy(0, at, (y[at].float() + more).to(y.dtype))
        return y


def halves(
    both: Tensor, gate: Callable[[Tensor, Tensor], Tensor], fused: str | None = None
) -> Tensor:
    """gate(g, u) of the halves g and u of [..., 2 * size]; in one launch on a GPU if the gate has
    a name in `kernels.cpu.linear.GATES`."""
    if fused is None or not runs(both.device):
        return gate(*both.chunk(2, dim=-1))
    from baton_worker.kernels.triton.gated import gated  # Needs triton, which may not be installed.

    return gated(both, fused)


class GatedLinear(Linear):
    """gate(g, u) of the two halves g and u of one product.

    Args:
        gate: the gating function of g and u, each [T, size].
        fused: its name in `kernels.cpu.linear.GATES` if it has one.
    """

    def __init__(
        self,
        in_features: int,
        size: int,
        context: BuildContext,
        gate: Callable[[Tensor, Tensor], Tensor],
        *,
        fused: str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(in_features, {"gate": size, "up": size}, context, bias=bias)
        self._gate, self.gate = gate, fused

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[T, in_features] to [T, size]; a gate has no residual."""
        assert residual is None
        if not self._kernel.applies_gate:
            return halves(super().forward(x), self._gate, self.gate)
        return self._kernel(x, None if self.lora is None else self.lora.delta(x))


class Shared(Protocol):
    """An embedding table that shares its weight with a tied head."""

    weight: nn.Parameter | None

    def share_rows(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Look rows up through `rows` from here on, and drop the weight."""
        ...


class LanguageHead(Linear):
    """Logits. A tied head shares the weight of the embedding table and loads nothing."""

    out_dtype = torch.float32

    def __init__(
        self, hidden: int, vocab: int, context: BuildContext, *, tied_to: Shared | None = None
    ) -> None:
        super().__init__(hidden, {"head": vocab}, context)
        self._head_name = context.name("head")
        self._whole = dict[int, LinearKernel]()
        """Weights that adapters have in the place of the head's, by number."""
        self.tied = tied_to is not None
        self._share_rows = None if tied_to is None else tied_to.share_rows
        if tied_to is not None:
            assert tied_to.weight is not None
            self.weight = tied_to.weight
            self._kernel = PlainLinear(tied_to.weight, None, self._row_block)
            self._parts = {context.name("embedding"): vocab}

    @property
    def lora_parts(self) -> dict[str, int]:
        """See `Linear`. Adapters of a tied head are its own, and not those of the table."""
        parts = super().lora_parts
        return dict(zip((self._head_name,), parts.values(), strict=False))

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """None when tied: the embedding fills the weight."""
        return iter(()) if self.tied else super().weight_targets()

    def awaited_weights(self) -> Iterator[str]:
        """Its own targets, and the embedding table of a tied head."""
        yield from super().awaited_weights()
        if self.tied:
            yield from (f"{part}.weight" for part in self._parts)

    def process_weights_after_loading(self) -> None:
        """Pack like any linear layer; an unquantised packed table replaces the embedding's copy."""
        super().process_weights_after_loading()
        if (
            self._share_rows is not None
            and isinstance(self._kernel, CpuLinear)
            and self._kernel.has_rows
        ):
            self._share_rows(self._kernel.rows)

    def whole(self, weight: Tensor) -> LinearKernel:
        """The kernel of a weight [vocab, hidden] in the place of the head's; any thread may call
        it."""
        spec = LinearSpec([weight], None, self.like, self.out_dtype, None, self._row_block, None)
        return choose(spec)

    def put_whole(self, slot: int, kernel: LinearKernel | None) -> None:
        """Adapter number `slot` has this weight from now on, or that of the base."""
        self._whole.pop(slot, None)
        if kernel is not None:
            self._whole[slot] = kernel

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        logits = self._product(x, residual)
        if self._whole and self._adapters is not None:
            for slot, at in self._adapters.rows(len(x), x.device):
                if (kernel := self._whole.get(slot)) is not None:
                    logits = logits.index_copy(0, at, kernel(x[at], None).to(logits.dtype))
        logits = logits if self.lora is None else self.lora.add(x, logits)
        return logits.to(torch.float32)
