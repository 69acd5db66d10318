"""Benchmark of the products against oneDNN's: `python -m baton_worker.kernels.cpu --bench`.

The weights of many layers alternate, so that none stays in the cache, as in a decode step. All
candidates run alternately and the best time of each counts, so ratios hold on a busy machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearKernel, OneDnnLinear
from baton_worker.kernels.quantized_weights import quantise

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""[out, in] of the products of a layer of SmolLM2-135M."""
LAYERS = 12
"""Enough of them that the weights of all forms, which take turns, are larger than the caches."""
_ROWS = (1, 8, 32, 64, 128)
_REPEATS = 7
_SECONDS = 1.0
"""No further repeat of one number of rows begins after so long: a busy machine takes longer."""
_REST = 0.01
"""Seconds before a form is timed. Until then the threads that oneDNN has used wait for more by
spinning, on a core that the next form has need of."""


def candidates(dtype: torch.dtype) -> dict[str, list[LinearKernel]]:
    """A model's products in every form that this machine supports; the first is the baseline."""
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in SHAPES]
    result: dict[str, list[LinearKernel]] = {}
    if OneDnnLinear.refuses(weights[0].to(dtype)) is None:
        result["oneDNN"] = [OneDnnLinear(w.to(dtype), None) for _ in range(LAYERS) for w in weights]
    if CpuLinear.refuses(weights[0].to(dtype)) is None:
        forms: dict[str, bool | None] = {"baton": None}
        if dtype is torch.bfloat16:
            forms = {"compact": True, "plain": False}
        for name, compact in forms.items():
            result[name] = [
                CpuLinear(w.to(dtype), None, compact=compact)
                for _ in range(LAYERS)
                for w in weights
            ]
        for kind in ("int8", "int4_minimum"):
            blocks = [quantise(w, kind) for w in weights]
            result[kind] = [CpuLinear(b, None, dtype=dtype) for _ in range(LAYERS) for b in blocks]
    return result


def seconds(
    forms: dict[str, list[LinearKernel]], rows: int, dtype: torch.dtype
) -> dict[str, float]:
    """The best time of one pass through all products, by form; at least one of each."""
    inputs = [torch.randn(rows, depth).to(dtype) for _, depth in SHAPES] * LAYERS
    best = dict.fromkeys(forms, float("inf"))
    begin = time.perf_counter()
    for repeat in range(_REPEATS):
        if repeat and time.perf_counter() - begin > _SECONDS:
            break
        for name, kernels in forms.items():
            best[name] = min(best[name], _timed(kernels, inputs))
    return best


def _timed(kernels: list[LinearKernel], inputs: list[Tensor]) -> float:
    time.sleep(_REST)
    begin = time.perf_counter()
    for kernel, x in zip(kernels, inputs, strict=True):
        kernel(x)
    return time.perf_counter() - begin


def lines(dtype: torch.dtype) -> Iterator[tuple[str, ...]]:
    """The rows of the table for one dtype."""
    forms = candidates(dtype)
    weights = LAYERS * sum(columns * depth for columns, depth in SHAPES)
    for rows in _ROWS:
        times = seconds(forms, rows, dtype)
        for name, best in times.items():
            num_bytes = sum(getattr(kernel, "nbytes", 0) for kernel in forms[name])
            yield (
                str(dtype).removeprefix("torch."),
                str(rows),
                name,
                f"{best * 1e3:.2f}",
                f"{(num_bytes or weights * dtype.itemsize) / best / 1e9:.1f}",
                f"{2 * rows * weights / best / 1e9:.0f}",
                f"{next(iter(times.values())) / best:.2f}",
            )


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    title = f"{LAYERS} layers of {len(SHAPES)} products, {torch.get_num_threads()} threads"
    table = Table(title=title)
    for heading in ("x", "rows", "weights", "ms", "GB/s", "GFLOP/s", "times the first"):
        table.add_column(heading, justify="right")
    for dtype in (torch.bfloat16, torch.float32):
        for line in lines(dtype):
            table.add_row(*line)
    Console().print(table)
