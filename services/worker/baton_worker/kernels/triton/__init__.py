"""Kernels for GPUs, in Triton (Tillet et al. 2019). Each is named after its twin in torch.

They have not been run on a GPU. What holds is that they compile for one, and that in Triton's
interpreter, which runs them on a CPU one program after the other, they give what their twins give.
Tile sizes, warps and stages are those of kernels of their kind; nobody has tuned them.

Nothing here imports triton before it is used: whoever wants a kernel asks `refuses` first.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec

import torch


def interpreted() -> bool:
    """Whether kernels that are imported now run in the interpreter (TRITON_INTERPRET=1)."""
    if find_spec("triton") is None:
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


def refuses(device: torch.device) -> str | None:
    """Why no kernel runs on a device, as half a sentence; None if they do."""
    if device.type == "cpu" and not interpreted():
        return "it needs a GPU, or TRITON_INTERPRET=1 to debug it on a CPU"
    if device.type not in ("cpu", "cuda"):
        return f"it does not run on {device.type}"
    if torch.version.hip is not None:
        return "it has no variant for ROCm: PyTorch is built for AMD here"
    return None if find_spec("triton") else "triton is not installed"


@functools.cache
def runs(device: torch.device) -> bool:
    """Whether layers and samplers take the kernels: on a GPU that they do not refuse. On a CPU its
    own come first, and the interpreter is for whoever asks for a kernel by name."""
    return device.type == "cuda" and refuses(device) is None


def power(size: int) -> int:
    """The least power of two that is not below `size`: what a tile has room for."""
    return 1 << (size - 1).bit_length()
