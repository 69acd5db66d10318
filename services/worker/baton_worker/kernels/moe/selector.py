"""Chooses the kernel of a layer's experts."""

from __future__ import annotations

from dataclasses import dataclass

from baton.errors import ModelError
from baton_worker.kernels.moe import KERNELS
from baton_worker.kernels.moe.aliases import NAMES
from baton_worker.kernels.moe.experts import ExpertKernel, Experts
from baton_worker.kernels.weight import QuantizedWeight


@dataclass(frozen=True, slots=True)
class ExpertKernelSelector:
    """Selects the first kernel that accepts a layer's experts, among those that `backend` allows.

    Raises:
        SettingsError: no such kernel; for other servers' names, what runs instead.
    """

    backend: str = "auto"
    """A row of `KERNELS`, an alias of one, or "auto" for all of them."""

    def __post_init__(self) -> None:
        self._candidates()

    def _candidates(self) -> tuple[str, ...]:
        return NAMES.candidates(self.backend, KERNELS)

    def takes(self, weight: QuantizedWeight) -> bool:
        """True if a weight of an expert may stay in the checkpoint's format."""
        kernels: list[type[ExpertKernel]] = [KERNELS.load(name) for name in self._candidates()]
        return any(kernel.takes(weight) for kernel in kernels)

    def select(self, experts: Experts) -> ExpertKernel:
        """Build the kernel for these experts.

        Raises:
            ModelError: every kernel refuses; the message lists the reasons.
        """
        reasons = list[str]()
        for name in self._candidates():
            kernel: type[ExpertKernel] = KERNELS.load(name)
            reason = _refusal(kernel, experts) or kernel.refuses(experts)
            if reason is None:
                return kernel(experts)
            reasons.append(f"{name} refused: {reason}")
        raise ModelError(f"No kernel serves these experts: {'; '.join(reasons)}.")


def _refusal(kernel: type[ExpertKernel], experts: Experts) -> str | None:
    """Why the kernel does not take the quantised weights among the experts', if any."""
    packed = (parts for parts in (*experts.packed_gate_up, *experts.packed_down) if parts)
    if all(kernel.takes(weight) for parts in packed for weight in parts):
        return None
    return "it does not multiply with the weights as the checkpoint stores them"
