"""Expert feed-forwards over routed tokens: the plain form, and three that group tokens by expert.

A (token, slot) pair is one visit of a token to an expert. Every kernel writes what a visit returns
to a row of its own and adds the rows of a token in slot order, in float32: the sum does not depend
on which other tokens are in the step.

    tokens     t0 t1 t2         experts [[2, 0], [0, 1], [2, 1]]
    visits     0  1  2  3  4  5   (token * slots + slot)
    by expert  e0: 1 2   e1: 3 5   e2: 0 4
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearKernel, fastest
from baton_worker.kernels.moe_aliases import NAMES
from baton_worker.kernels.quantized_weights import KINDS, Rounding
from baton_worker.platform.malloc import release_pages

Gate: TypeAlias = Callable[[Tensor], Tensor]
"""What an expert does between its products: what comes out of the first one, gate and then up
[n, 2 * intermediate] or, of an expert without a gate, up alone, to [n, intermediate]."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of all experts of a layer, and how to apply them."""

    gate_up: Tensor
    """[E, 2 * intermediate, hidden]: gate rows, then up rows; without gates up rows alone."""
    down: Tensor
    """[E, hidden, intermediate]."""
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    gate: Gate
    weigh_input: bool = False
    """Whether a visit's weight applies to what the expert is given, not to what it returns."""
    fused: str | None = None
    """The name of `gate` in `kernels.cpu.linear.GATES`, if it has one."""
    quantised_as: str | None = None
    """The kind of `kernels.quantized.KINDS` that each expert's weights are to be rounded to."""
    disposable: bool = False
    """Whether nobody else reads the weights: what a kernel has packed may go at once."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they are given."""
        return self.gate_up.nbytes + self.down.nbytes


class ExpertKernel(Protocol):
    """The contract of a row of `KERNELS`; a class, built with the `Experts` of a layer."""

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Why it cannot serve these experts, as half a sentence; None if it can."""
        ...

    capture_blocker: str | None
    """See `layers.layer.Layer.capture_blocker`."""

    def __init__(self, experts: Experts) -> None: ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weights as they are held."""
        ...

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x [T, hidden], experts int64 [T, slots], weights float32 [T, slots] to [T, hidden].

        A visit to an expert outside 0 .. E - 1 contributes nothing.
        """
        ...


KERNELS = Registry(
    "experts",
    {
        "triton": "baton_worker.kernels.moe:TritonExperts",
        "padded": "baton_worker.kernels.moe:PaddedExperts",
        "grouped": "baton_worker.kernels.moe:GroupedExperts",
        "loop": "baton_worker.kernels.moe:LoopExperts",
    },
)


_wanted: tuple[str, ...] = ()
"""Kernels that may be chosen; none means all."""


def prefer(name: str) -> None:
    """Experts that are loaded from now on have this kernel or none; with "auto" they choose.

    Raises:
        SettingsError: there is no such kernel; of names that others have, what runs instead.
    """
    global _wanted
    known = NAMES.ours(name)
    _wanted = () if known == "auto" else (KERNELS.check(known),)


def choose(experts: Experts) -> ExpertKernel:
    """The first kernel that accepts these experts, of those that `prefer` has left.

    Raises:
        ModelError: every kernel refuses; the message holds every reason.
    """
    reasons = list[str]()
    for name in _wanted or KERNELS.names():
        kernel: type[ExpertKernel] = KERNELS.load(name)
        reason = kernel.refuses(experts)
        if reason is None:
            return kernel(experts)
        reasons.append(f"{name} refused: {reason}")
    raise ModelError(f"No kernel serves these experts: {'; '.join(reasons)}.")


class Dispatch(NamedTuple):
    """Visits sorted by expert, in token order within an expert."""

    visits: Tensor
    """int64 [V]: visits to experts 0 .. E - 1; the others are left out."""
    counts: list[int]
    """Visits to each expert."""


def dispatch(experts: Tensor, num_experts: int) -> Dispatch:
    """Group the visits of int64 [T, slots] by expert. Waits for the device to learn the counts."""
    flat = experts.flatten()
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    counts = torch.bincount(flat, minlength=num_experts).tolist()[:num_experts]
    return Dispatch(flat.argsort(stable=True)[: sum(counts)], counts)


def combine(returned: Tensor, visits: Tensor, weights: Tensor) -> Tensor:
    """Undo `dispatch`: returned [V, hidden] of `visits` to [T, hidden], weighted sums."""
    num_tokens, slots = weights.shape
    size, complete = returned.shape[-1], visits.numel() == weights.numel()
    make = returned.new_empty if complete else returned.new_zeros
    rows = make((num_tokens * slots, size)).index_copy_(0, visits, returned)
    return weighted_sum(rows.view(num_tokens, slots, size), weights)


def weighted_sum(rows: Tensor, weights: Tensor) -> Tensor:
    """rows [T, slots, hidden] times float32 weights [T, slots], added in slot order."""
    total = rows[:, 0] * weights[:, 0, None]
    for slot in range(1, rows.shape[1]):
        total = total.addcmul(rows[:, slot], weights[:, slot, None])
    return total.to(rows.dtype)


_COUNTED = "the host waits for the number of tokens that each expert gets"


class LoopExperts:
    """The twin: every visit by itself, as the definition has it."""

    capture_blocker = _COUNTED

    def __init__(self, experts: Experts) -> None:
        self._experts = rounded(experts)
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Never: it is the oracle of the other kernels."""
        return None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        out = torch.zeros_like(x, dtype=torch.float32)
        for token, row in enumerate(experts.tolist()):
            for slot, expert in enumerate(row):
                if 0 <= expert < self._experts.down.shape[0]:
                    out[token] += self._visit(x[token], expert, weights[token, slot])
        return out.to(x.dtype)

    def _visit(self, x: Tensor, expert: int, weight: Tensor) -> Tensor:
        e = self._experts
        x = (x * weight).to(x.dtype) if e.weigh_input else x
        gate_up_bias = None if e.gate_up_bias is None else e.gate_up_bias[expert]
        down_bias = None if e.down_bias is None else e.down_bias[expert]
        inner = e.gate(F.linear(x, e.gate_up[expert], gate_up_bias))
        returned = F.linear(inner, e.down[expert], down_bias).float()
        return returned if e.weigh_input else returned * weight


class GroupedExperts:
    """One pair of products per expert that has visits: a few tokens read a few experts.

    Each expert's weights are prepared once for the CPU, as a linear layer's are.
    """

    capture_blocker = _COUNTED

    def __init__(self, experts: Experts) -> None:
        self._gate, self._weigh_input = experts.gate, experts.weigh_input
        refused = experts.fused is None or CpuLinear.refuses(experts.gate_up[0]) is not None
        self._fused, kind = None if refused else experts.fused, experts.quantised_as
        spent = experts.disposable
        self._gate_up = _linears(experts.gate_up, experts.gate_up_bias, kind, self._fused, spent)
        self._down = _linears(experts.down, experts.down_bias, kind, None, spent)
        pairs = [*zip(self._gate_up, experts.gate_up, strict=True)]
        pairs += zip(self._down, experts.down, strict=True)
        self.nbytes = sum(k.nbytes if isinstance(k, CpuLinear) else w.nbytes for k, w in pairs)

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Never."""
        return None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        visits, counts = dispatch(experts, len(self._down))
        given = _given(x, visits, weights, self._weigh_input)
        returned, first = torch.empty_like(given), 0
        for expert, count in enumerate(counts):
            if count:
                here = slice(first, first + count)
                inner = self._gate_up[expert](given[here])
                if self._fused is None:
                    inner = self._gate(inner)
                returned[here] = self._down[expert](inner)
                first += count
        return combine(returned, visits, _returned_weights(weights, self._weigh_input))


class TritonExperts:
    """The fused products of `kernels.triton.moe`, which is imported only where it can run."""

    _DTYPES = (torch.float32, torch.bfloat16, torch.float16)
    capture_blocker = None

    def __init__(self, experts: Experts) -> None:
        from baton_worker.kernels.triton import moe

        self._experts, self._forward = rounded(experts), moe.forward
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """What the device, its tensor cores or the installation cannot do."""
        if experts.down.device.type != "cuda":
            return "it needs a GPU"
        if experts.down.dtype not in cls._DTYPES:
            return f"it has no product for {experts.down.dtype}"
        return None if find_spec("triton") else "triton is not installed"

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        return self._forward(self._experts, x, experts, weights)


class PaddedExperts:
    """Two batched products over [E, C, hidden], C the most visits of an expert (GShard's layout,
    Lepikhin et al. 2020, arXiv:2006.16668). For a device that would idle between small products."""

    capture_blocker = _COUNTED

    def __init__(self, experts: Experts) -> None:
        self._experts = rounded(experts)
        self.nbytes = self._experts.nbytes

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """The CPU gains nothing from the padding."""
        return "it is for accelerators" if experts.down.device.type == "cpu" else None

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """See `ExpertKernel`."""
        e = self._experts
        visits, counts = dispatch(experts, e.down.shape[0])
        places = _places(counts).to(x.device)
        padded = x.new_zeros((len(counts), max(1, *counts), x.shape[-1]))
        padded.flatten(0, 1).index_copy_(0, places, _given(x, visits, weights, e.weigh_input))
        inner = e.gate(_batched(padded, e.gate_up, e.gate_up_bias))
        returned = _batched(inner, e.down, e.down_bias).flatten(0, 1)
        weights = _returned_weights(weights, e.weigh_input)
        return combine(returned.index_select(0, places), visits, weights)


def rounded(experts: Experts) -> Experts:
    """The same experts with their weights rounded in place, for kernels that run floats alone."""
    if (kind := experts.quantised_as) is not None:
        for weights in (experts.gate_up, experts.down):
            if weights.shape[-1] % KINDS[kind].multiple == 0:
                rows = weights.flatten(0, 1)
                Rounding(rows, kind).into(rows)
    return experts


def _linears(
    weights: Tensor, biases: Tensor | None, kind: str | None, gate: str | None, disposable: bool
) -> Sequence[LinearKernel]:
    """One product per expert; every expert has scales of its own where `kind` asks for any."""
    kernels = list[LinearKernel]()
    for expert, weight in enumerate(weights):
        kernels.append(_linear(weight, None if biases is None else biases[expert], kind, gate))
        if disposable and isinstance(kernels[-1], CpuLinear):
            release_pages(weight.data_ptr(), weight.nbytes)
    return kernels


def _linear(
    weight: Tensor, bias: Tensor | None, kind: str | None, gate: str | None
) -> LinearKernel:
    """A product, rounded if its rows are whole groups, with a gate only where the CPU fuses it."""
    if kind is not None and weight.shape[-1] % KINDS[kind].multiple == 0:
        rounding = Rounding(weight, kind)
        if CpuLinear.refuses(rounding, weight) is None:
            return CpuLinear(rounding, bias, gate=gate, dtype=weight.dtype)
        rounding.into(weight)
    return fastest(weight, bias) if gate is None else CpuLinear(weight, bias, gate=gate)


def _given(x: Tensor, visits: Tensor, weights: Tensor, weigh_input: bool) -> Tensor:
    """[V, hidden]: what each visit gives its expert."""
    given = x.index_select(0, visits // weights.shape[1])
    if weigh_input:
        given = (given * weights.flatten()[visits, None]).to(x.dtype)
    return given


def _returned_weights(weights: Tensor, weigh_input: bool) -> Tensor:
    return torch.ones_like(weights) if weigh_input else weights


def _places(counts: Sequence[int]) -> Tensor:
    """int64 [V]: where each visit lies in [E * C], C the largest count."""
    each = torch.tensor(counts)
    first = torch.arange(len(counts)) * max(1, *counts) - (each.cumsum(0) - each)
    return torch.arange(int(each.sum())) + first.repeat_interleave(each)


def _batched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.bmm(x, weight.transpose(1, 2))
    return y if bias is None else y + bias[:, None]
