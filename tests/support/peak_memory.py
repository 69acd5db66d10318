"""How much memory loading a checkpoint takes: `python -m tests.support.peak_memory PATH DTYPE
QUANTIZE`.

Prints the bytes that the process held at most while it loaded, beyond what it held before, and the
bytes of the weights that it then has. What loading runs has been run once before: the code of torch
is mapped from its file as it is first called, and ten megabytes of that would count as weights.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from baton_worker.checkpoint.gguf.file import GgufFile
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearSpec, choose
from baton_worker.kernels.quantized_weights import Rounding
from baton_worker.layers.build_context import BuildContext
from baton_worker.platform.malloc import keep_freed_memory


def resident(field: str) -> int:
    """Bytes of this process now (VmRSS) or at most (VmHWM)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def call_once() -> None:
    """Round, pack and multiply weights of a few kilobytes."""
    assert library("linear") is not None
    weight = torch.ones(64, 64)
    for kind in ("int8", "int4_minimum"):
        rounding = Rounding(weight, kind)
        for gate in (None, "silu"):
            CpuLinear(rounding, None, gate=gate, dtype=torch.bfloat16)
        rounding.into(weight)
    for dtype in (torch.float32, torch.bfloat16):
        like = weight.to(dtype)
        choose(LinearSpec((like,), None, like))(torch.ones(2, 64, dtype=dtype))


def main(path: Path, dtype: str, quantize: str) -> None:
    """Load once what is loaded lazily, then measure."""
    assert GgufFile is not None
    keep_freed_memory()  # as a worker does
    call_once()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    model = load_model(
        path, BuildContext(torch.device("cpu"), getattr(torch, dtype), quantization=quantize)
    )
    print(resident("VmHWM") - before, model.weight_bytes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
