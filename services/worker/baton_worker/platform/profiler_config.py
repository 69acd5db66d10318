"""vLLM's `--profiler-config`.

The fields are those of `ProfilerConfig` in vLLM's `vllm/config/profiler.py`, as far as they have a
meaning here; others are refused rather than ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from pydantic import AfterValidator


class ProfilerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The profile of a worker's steps, and where it is written."""

    profiler: Literal["torch", "cuda"] = "torch"
    """`torch` writes traces of `torch.profiler`; `cuda` marks the range for Nsight Systems, which
    has to run the worker with `--capture-range=cudaProfilerApi`."""
    torch_profiler_dir: str = ""
    """Folder of the traces."""
    torch_profiler_with_stack: bool = True
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Steps after which a profile ends by itself; 0 means at the request alone."""

    def __post_init__(self) -> None:
        if self.profiler == "torch" and not Path(self.torch_profiler_dir).is_absolute():
            raise ValueError("torch_profiler_dir is the absolute path of a folder for the traces")


def parse(text: str) -> ProfilerConfig | None:
    """The JSON as an object, or None if there is none. Raises `ValueError` with the problem."""
    return msgspec.json.decode(text, type=ProfilerConfig) if text else None


def _check(text: str) -> str:
    parse(text)
    return text


ProfilerSettings: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: the JSON text, or empty."""
