"""Which code turns logits into tokens: operators of torch, a kernel in C++, or two launches of
Triton. The tokens are the same."""

from __future__ import annotations

import torch

from baton.errors import SettingsError
from baton_worker.kernels import sampling as kernels
from baton_worker.kernels import triton

SAMPLERS = ("auto", "torch", "cpu", "triton")
"""auto is triton on a GPU that has it, and cpu on a CPU for which that could be built."""
ALIASES = {"torchsampler": "torch"}
"""Names that TensorRT-LLM has for one of them, in small letters."""
ELSEWHERE = {
    "trtllmsampler": (
        "the C++ sampler of TensorRT-LLM is part of its runtime; use triton, which samples on the "
        "GPU in two launches, or leave this at auto"
    ),
}
"""Names of what is not here, and what to do instead."""

_wanted = "auto"


def prefer(name: str, device: torch.device) -> None:
    """Tokens are chosen so from now on.

    Args:
        device: where logits will be.

    Raises:
        SettingsError: there is no such sampler, or it does not run there.
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
    """Whether logits there are sampled in Triton."""
    return triton.runs(device) if _wanted == "auto" else _wanted == "triton"


def in_cpp(device: torch.device) -> bool:
    """Whether logits there are sampled in C++."""
    return kernels.refuses(device) is None if _wanted == "auto" else _wanted == "cpu"
