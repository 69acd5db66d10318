"""Kernels for GPUs, in Triton (Tillet et al. 2019). Each is named after its twin in torch.

They have not been run on a GPU. What holds is that they compile for one, and that in Triton's
interpreter, which runs them on a CPU one program after the other, they give what their twins give.
Tile sizes, warps and stages are those of kernels of their kind; nobody has tuned them.

Counts that change from step to step (rows, tokens, partitions) are in `do_not_specialize`: Triton
would compile a kernel anew for a 1 and for a multiple of 16, in the middle of serving.

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
    if find_spec("triton") is None:
        return "triton is not installed"
    return _trial(device) if device.type == "cuda" else None


@functools.cache
def _trial(device: torch.device) -> str | None:
    """Why a kernel cannot be compiled and launched, as half a sentence: once, when a worker starts.
    Triton compiles its launchers in C, so a machine without a compiler or the headers of Python has
    a GPU and no kernels."""
    from baton_worker.kernels.triton.norm import rms_norm

    try:
        rms_norm(torch.ones(1, 16, device=device), None, 1e-6)
        torch.cuda.synchronize(device)
    except Exception as error:  # Of Triton, of a compiler or of the driver: all mean the same.
        reason = str(error).strip().splitlines()
        return (
            f"a trial kernel failed ({reason[-1] if reason else type(error).__name__}); it needs "
            "gcc and Python.h (Debian: gcc, libc6-dev, python3-dev)"
        )
    return None


@functools.cache
def runs(device: torch.device) -> bool:
    """Whether layers and samplers take the kernels: on a GPU that they do not refuse. On a CPU its
    own come first, and the interpreter is for whoever asks for a kernel by name."""
    return device.type == "cuda" and refuses(device) is None


def power(size: int) -> int:
    """The least power of two that is not below `size`: what a tile has room for."""
    return 1 << (size - 1).bit_length()
