"""The figures of one card, in one JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from baton_worker.bench.gpu import (
    ceilings,
    engine_times,
    kept_memory,
    kernel_times,
    model_shapes,
)
from baton_worker.bench.gpu.device_timer import DeviceTimer
from baton_worker.bench.gpu.kernel_case import REAL, TINY
from baton_worker.config import Config

PARTS = ("kernels", "models")
SHAPES = ("llama-3-8b", "qwen3-30b-a3b")
_ROWS, _CONTEXTS = (1, 8, 32, 64, 128, 256), (128, 1024, 8192, 32768)
_PROMPTS = (128, 1024, 8192)
_STEPS = 24


def card(device: torch.device) -> str:
    """Name of the device, as a part of a file's name."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return name.lower().replace(" ", "-")


def measure(
    device: torch.device, folder: Path, parts: Sequence[str], shapes: Sequence[str], *, tiny: bool
) -> dict[str, Any]:
    """Measure the parts; models are of random weights.

    Args:
        folder: for configurations of models.
        tiny: sizes that an interpreter finishes, to try the code itself.
    """
    timer = DeviceTimer(device, 1 if tiny else 20)
    dtype = torch.float32 if tiny else torch.bfloat16
    copied, width = (1 << 12, 16) if tiny else (1 << 31, 8192)
    limits = ceilings.measure(timer, dtype, copied=copied, width=width)
    results: dict[str, Any] = {
        "card": card(device),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "ceilings": asdict(limits),
        "kept_memory": kept_memory.measure(device),
    }
    if "kernels" in parts:
        sizes = TINY if tiny else REAL
        results["kernels"] = kernel_times.measure(timer, limits, dtype, sizes)
    if "models" in parts:
        results["models"] = {
            name: _model(name, device, timer, folder / name, tiny=tiny) for name in shapes
        }
    return results


def _model(
    name: str, device: torch.device, timer: DeviceTimer, folder: Path, *, tiny: bool
) -> dict[str, Any]:
    config = Config(
        model=str(model_shapes.write(name, folder)),
        load_format="dummy",
        device="cuda" if device.type == "cuda" else "cpu",
        max_num_seqs=4 if tiny else 256,
        max_num_batched_tokens=0 if tiny else 8192,
        num_gpu_blocks_override=64 if tiny else 0,
    )
    engine, seconds = engine_times.start(config)
    rows, contexts = ((1, 2), (16,)) if tiny else (_ROWS, _CONTEXTS)
    steps = 4 if tiny else _STEPS
    try:
        return {
            "engine": str(engine.resolved),
            "weight_bytes": engine.resolved.weight_bytes,
            "start_seconds": seconds,
            "decode": engine_times.decode(engine, timer, rows, contexts, steps),
            "prefill": engine_times.prefill(engine, timer, (16,) if tiny else _PROMPTS),
            "anatomy": [
                engine_times.anatomy(engine, timer, count, contexts[0])
                for count in ((1,) if tiny else (1, 64))
            ],
        }
    finally:
        engine.close()


def write(results: dict[str, Any], folder: Path) -> Path:
    """Write the figures; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu-{results['card']}-{results['time'][:10]}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path
