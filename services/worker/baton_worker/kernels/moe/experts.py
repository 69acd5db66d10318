"""The experts of a layer, and the contract of the kernels that apply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.kernels.weight import QuantizedWeight

if TYPE_CHECKING:
    from baton_worker.kernels.moe.lora import ExpertLora
    from baton_worker.kernels.moe.store import ExpertStore

Gate: TypeAlias = Callable[[Tensor], Tensor]
"""The activation between the products of an expert: the output of the first one, gate and then up
[n, 2 * intermediate] or, of an expert without a gate, up alone, to [n, intermediate]."""
PackedParts: TypeAlias = tuple[QuantizedWeight, ...]
"""The weights whose rows make up one of an expert's."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights of all experts of a layer, and their parameters."""

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
    expert: spec.Glu | spec.Mlp | None = None
    """What `gate` is, for kernels that apply those without such a name."""
    quantised_as: str | None = None
    """The kind of `kernels.quantized.KINDS` that each expert's weights are to be rounded to."""
    disposable: bool = False
    """Whether no one else holds the weights: what a kernel has packed may go at once."""
    packed_gate_up: Sequence[PackedParts | None] = ()
    """By expert the packed weights in place of its rows of `gate_up`, which has none if all are
    packed."""
    packed_down: Sequence[PackedParts | None] = ()
    """The same for `down`."""
    lora: ExpertLora | None = None
    """LoRA products, where adapters are served."""
    exact: bool = False
    """Whether no bit of a token may depend on the number of others."""

    @property
    def nbytes(self) -> int:
        """Bytes of the given weights."""
        return self.gate_up.nbytes + self.down.nbytes


class ExpertKernel(Protocol):
    """The contract of a row of `KERNELS`; a class, built with the `Experts` of a layer."""

    @classmethod
    def refuses(cls, experts: Experts) -> str | None:
        """Why the kernel cannot run these experts, as half a sentence; None if it can."""
        ...

    takes_adapters: bool
    """Whether it applies `Experts.lora`."""

    @property
    def capture_blocker(self) -> str | None:
        """See `layers.layer.Layer.capture_blocker`."""
        ...

    @classmethod
    def takes(cls, weight: QuantizedWeight) -> bool:
        """Whether it multiplies with a weight as a checkpoint stores it; others get floats."""
        ...

    def __init__(self, experts: Experts) -> None: ...

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in the kernel's layout."""
        ...

    @property
    def store(self) -> ExpertStore:
        """The weights by expert, for experts that change their rank."""
        ...

    def __call__(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x [T, hidden], experts int64 [T, slots], weights float32 [T, slots] to [T, hidden].

        A visit to an expert outside 0 .. E - 1 contributes nothing.
        """
        ...


def rounded(experts: Experts) -> Experts:
    """The same experts with weights rounded in place, for kernels that support floats only."""
    if (kind := experts.quantised_as) is not None:
        for weights in (experts.gate_up, experts.down):
            if weights.shape[-1] % KINDS[kind].multiple == 0:
                rows = weights.flatten(0, 1)
                Rounding(rows, kind).into(rows)
    return experts
