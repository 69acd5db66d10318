"""Kernels for GPUs, in Triton (Tillet et al. 2019). Each is named after its twin in torch.

Tests show that they compile for GPUs, and that they equal their twins, on a GPU or in Triton's
interpreter, which runs programs one by one on a CPU. Tile sizes, warps and stages of attention and
of experts were measured on an H100; the others are untuned.

Counts that change from step to step (rows, tokens, partitions) are in `do_not_specialize`: Triton
would otherwise recompile a kernel for 1 and for multiples of 16, in the middle of serving. Nothing
here imports triton before it is used: call `refuses` first.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import torch


def interpreted() -> bool:
    """True if kernels run in the interpreter (TRITON_INTERPRET=1)."""
    if find_spec("triton") is None:
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


def cache_dir() -> Path | None:
    """Folder of Triton's compiled kernels; None without Triton."""
    if find_spec("triton") is None:
        return None
    from triton import knobs

    return Path(knobs.cache.dir)


_ROOM = 164 << 10
"""Bytes of shared memory that the largest tiles need, with inputs of 16 bits: those of data center
GPUs from compute capability 8.0 on."""


@functools.cache
def has_room(device: torch.device) -> bool:
    """Whether a multiprocessor has room for the largest tiles; the interpreter has."""
    if device.type != "cuda":
        return True
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor) >= _ROOM


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter is one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def refuses(device: torch.device) -> str | None:
    """Why kernels cannot run on a device, as half a sentence; None if they can."""
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
    """Why a trial kernel cannot be compiled and launched, as half a sentence; run once at start.
    Triton compiles its launchers in C, so it needs a compiler and Python's headers."""
    from baton_worker.kernels.triton.norm import rms_norm

    try:
        rms_norm(torch.ones(1, 16, device=device), None, 1e-6)
        torch.cuda.synchronize(device)
    except Exception as error:  # Errors of Triton, the compiler or the driver all mean the same.
        reason = str(error).strip().splitlines()
        return (
            f"a trial kernel failed ({reason[-1] if reason else type(error).__name__}); it needs "
            "gcc and Python.h (Debian: gcc, libc6-dev, python3-dev)"
        )
    return None


@functools.cache
def runs(device: torch.device) -> bool:
    """True if layers and samplers use the kernels: on a GPU that they do not refuse. On a CPU the
    C++ kernels come first; the interpreter runs only what is selected by name."""
    return device.type == "cuda" and refuses(device) is None


def power(size: int) -> int:
    """The smallest power of two of at least `size`."""
    return 1 << (size - 1).bit_length()
