"""One model in the formats that other tools write: GGUF files of llama-quantize, and checkpoints of
GPTQ, AWQ and others, whose weights are rounded to the nearest."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.gguf_conversion import convert, permuted, renamed
from tests.support.worker.quantization_cases import CASES

Importance = dict[str, Tensor]
"""Name of a weight -> mean square of each of its inputs [K]."""


def importance(model: Any, ids: Tensor) -> Importance:
    """What llama-imatrix measures: of each projection, over the tokens [1, T]."""
    found = Importance()

    def keep(name: str, _: Any, inputs: tuple[Tensor, ...]) -> None:
        found[f"{name}.weight"] = inputs[0].double().square().mean((0, 1)).float()

    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    hooks = [m.register_forward_pre_hook(partial(keep, n)) for n, m in linear]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


def write_importance(path: Path, weights: Importance, config: Any) -> None:
    """The file that `llama-quantize --imatrix` reads: the number of entries, then of each its name,
    a count of calls, and float32 values."""
    entries = list(renamed("llama", weights, config))
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(entries)))
        for name, values in entries:
            stored = name.encode()
            file.write(struct.pack("<i", len(stored)) + stored)
            file.write(struct.pack("<ii", 1, len(values)) + values.numpy().tobytes())


def gguf_files(folder: Path, kinds: tuple[str, ...], programs: Path) -> Iterator[tuple[str, Path]]:
    """Name with bits per weight, and file, one after the other in one place. `folder` has the
    checkpoint and the file of `write_importance`, `programs` has llama-quantize."""
    source = convert(folder, "llama", {}, {}, steps=(permuted,)).rename(folder / "float32.gguf")
    for kind in kinds:
        target = folder / f"{kind}.gguf"
        command = [programs / "llama-quantize", "--imatrix", folder / "importance.dat"]
        subprocess.run([*command, source, target, kind], check=True, capture_output=True)
        yield f"llama.cpp {kind}, {bits(target):.1f} bits", target
        target.unlink()
    source.unlink()


def bits(path: Path) -> float:
    """Mean bits of a value of all matrices of a GGUF file."""
    matrices = [tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) > 1]
    stored = sum(int(tensor.n_bytes) for tensor in matrices)
    return 8 * stored / sum(int(tensor.n_elements) for tensor in matrices)


def checkpoint(source: Path, folder: Path, case: str) -> Path:
    """Write `source` with the projections of a case of `CASES`."""
    stored = dict[str, Tensor]()
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            stored[name] = weight
            continue
        parts, module = CASES[case].method(weight)[0], name.removesuffix(".weight")
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    folder.mkdir()
    save_file(stored, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = CASES[case].settings
    (folder / "config.json").write_text(json.dumps(config))
    return folder
