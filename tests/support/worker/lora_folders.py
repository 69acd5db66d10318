"""PEFT folders with random products, written without peft, and checkpoints they are merged into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def write_adapter(
    folder: Path,
    shapes: Mapping[str, tuple[int, int]],
    *,
    rank: int = 4,
    seed: int = 0,
    scale: float = 1.0,
    magnitude: float | None = None,
    **config: Any,
) -> Path:
    """An adapter of modules of these shapes (out, in); `scale` makes its products larger. With
    `magnitude` it is decomposed (DoRA), and the rows of all weights have about this norm."""
    generator, stored = torch.Generator().manual_seed(seed), {}
    for module, (rows, columns) in shapes.items():
        stem = f"base_model.model.{module}"
        a = torch.randn(rank, columns, generator=generator) / columns**0.5
        b = torch.randn(rows, rank, generator=generator) * scale
        stored |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        if magnitude is not None:
            norms = magnitude * (0.5 + torch.rand(rows, generator=generator))
            stored[f"{stem}.lora_magnitude_vector"] = norms
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"} | config
    said |= {} if magnitude is None else {"use_dora": True}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


def deltas(adapter: Path, scale: float = 2.0) -> dict[str, Tensor]:
    """Module -> what the adapter adds to its weight."""
    stored, found = load_file(adapter / "adapter_model.safetensors"), {}
    for name, a in stored.items():
        if name.endswith(".lora_A.weight"):
            b = stored[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            found[module] = scale * (b.double() @ a.double()).float()
    return found


def merge(base: Path, adapter: Path, to: Path, turned: Container[str] = ()) -> Path:
    """A copy of a checkpoint whose weights have the adapter in them. The modules `turned` are
    stored the other way round, [in, out]."""
    shutil.copytree(base, to)
    own = load_file(adapter / "adapter_model.safetensors")
    for path in to.glob("*.safetensors"):
        stored = load_file(path)
        for module, delta in deltas(adapter).items():
            if (weight := stored.get(f"{module}.weight")) is not None:
                weight = weight.T if module in turned else weight
                total = weight.float() + delta
                norms = own.get(f"base_model.model.{module}.lora_magnitude_vector")
                if norms is not None:
                    total *= (norms / total.norm(dim=1))[:, None]
                total = total.T.contiguous() if module in turned else total
                stored[f"{module}.weight"] = total.to(weight.dtype)
        save_file(stored, path, {"format": "pt"})
    return to
