"""Sampler backends: torch operators, a C++ kernel or two Triton launches. The tokens are the
same."""

from __future__ import annotations

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
        "GPU in two launches, or leave this at auto"
    ),
}
"""Samplers that do not exist here, and their replacements."""

_wanted = "auto"


def prefer(name: str, device: torch.device) -> None:
    """Set the sampler.

    Args:
        device: the device of the logits.

    Raises:
        SettingsError: the sampler is unknown or does not run on the device.
    """
    global _wanted
    known = ALIASES.get(name.lower(), name.lower())
    if (why := ELSEWHERE.get(known)) is not None:
        raise SettingsError(f"--sampler {name}: {why}.")
    if known not in SAMPLERS:
        raise SettingsError(f"--sampler {name}: it is not one of {', '.join(SAMPLERS)}.")
    refusing = {"triton": triton.refuses, "cpu": kernels.refuses}.get(known)
    if refusing is not None and (reason := refusing(device)) is not None:
        raise SettingsError(f"--sampler {name}: {reason}. Use torch, or leave it at auto.")
    _wanted = known


def in_triton(device: torch.device) -> bool:
    """Whether logits on this device are sampled in Triton."""
    return triton.runs(device) if _wanted == "auto" else _wanted == "triton"


def in_cpp(device: torch.device) -> bool:
    """Whether logits on this device are sampled in C++."""
    return kernels.refuses(device) is None if _wanted == "auto" else _wanted == "cpu"
