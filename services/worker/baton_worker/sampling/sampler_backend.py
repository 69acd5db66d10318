"""Sampler backends: torch operators, a C++ kernel or Triton launches. The tokens are the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baton.errors import SettingsError
from baton_worker.kernels import sampling as kernels
from baton_worker.kernels import triton

SAMPLERS = ("auto", "torch", "cpu", "triton")
""""auto" is triton on a GPU that supports it, and cpu on a CPU for which the kernel can be
built."""
ALIASES = {"torchsampler": "torch"}
"""TensorRT-LLM's sampler names, in lower case."""
ELSEWHERE = {
    "trtllmsampler": (
        "the C++ sampler of TensorRT-LLM is part of its runtime; use triton, which samples on the "
        "GPU, or leave this at auto"
    ),
}
"""Samplers that do not exist here, and their replacements."""


@dataclass(frozen=True, slots=True)
class SamplerBackend:
    """The choice of a sampler."""

    name: str = "auto"
    """One of `SAMPLERS`."""

    @classmethod
    def named(cls, name: str, device: torch.device) -> SamplerBackend:
        """Under a name that is used here or elsewhere.

        Args:
            device: the device of the logits.

        Raises:
            SettingsError: the sampler is unknown or does not run on the device.
        """
        backend, flag = ALIASES.get(name.lower(), name.lower()), f"--sampling-backend {name}"
        if (why := ELSEWHERE.get(backend)) is not None:
            raise SettingsError(f"{flag}: {why}.")
        if backend not in SAMPLERS:
            raise SettingsError(f"{flag}: it is not one of {', '.join(SAMPLERS)}.")
        refusing = {"triton": triton.refuses, "cpu": kernels.refuses}.get(backend)
        if refusing is not None and (reason := refusing(device)) is not None:
            raise SettingsError(f"{flag}: {reason}. Use torch, or leave it at auto.")
        return cls(backend)

    def in_triton(self, device: torch.device) -> bool:
        """Whether logits on this device are sampled in Triton."""
        return triton.runs(device) if self.name == "auto" else self.name == "triton"

    def in_cpp(self, device: torch.device) -> bool:
        """Whether logits on this device are sampled in C++."""
        return kernels.refuses(device) is None if self.name == "auto" else self.name == "cpu"
