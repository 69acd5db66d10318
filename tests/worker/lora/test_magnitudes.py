"""Magnitudes of decomposed adapters: read as peft stores them, and refused by name otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.magnitudes import is_magnitude
from tests.support.worker.adapted_model import Adapted
from tests.support.worker.lora_folders import write_adapter

Q, STEM = "model.layers.0.self_attn.q_proj", "base_model.model.model.layers.0.self_attn.q_proj"
VECTOR = f"{STEM}.lora_magnitude_vector"


def folder(root: Path, adapted: Adapted, change: Any = None, **config: Any) -> Path:
    made = write_adapter(root, {Q: adapted.store.targets.shapes[Q]}, magnitude=1.0, **config)
    stored = load_file(made / "adapter_model.safetensors")
    if change is not None:
        change(stored)
    save_file(stored, made / "adapter_model.safetensors")
    return made


@pytest.mark.row("F11.03")
def test_are_read_under_every_name_and_count_in_digest_and_size(
    adapted: Adapted, tmp_path: Path
) -> None:
    found, targets = list[Any](), adapted.store.targets
    for name in ("", ".weight", ".default", ".default.weight"):
        assert is_magnitude(f"{VECTOR}{name}") and not is_magnitude(f"{STEM}.lora_A.weight")
        made = folder(
            tmp_path / f"a{name}", adapted, lambda t, n=name: t.update({VECTOR + n: t.pop(VECTOR)})
        )
        found.append(read_adapter(made, targets, 16).pairs[Q].magnitude)
    assert all(torch.equal(one, found[0]) for one in found) and found[0].dtype is torch.float32
    plain = write_adapter(tmp_path / "plain", {Q: targets.shapes[Q]})
    with_it, without = (read_adapter(one, targets, 16) for one in (tmp_path / "a", plain))
    assert with_it.nbytes == without.nbytes + found[0].nbytes
    assert with_it.digest != without.digest


def test_what_does_not_fit_is_refused_by_name(adapted: Adapted, tmp_path: Path) -> None:
    targets = adapted.store.targets
    table = "base_model.model.model.embed_tokens"
    shape = targets.table_shapes["model.embed_tokens"]

    def embeds(stored: dict[str, torch.Tensor]) -> None:
        stored[f"{table}.lora_embedding_A"] = torch.ones(4, shape[0])
        stored[f"{table}.lora_embedding_B"] = torch.ones(shape[1], 4)
        stored[f"{table}.lora_magnitude_vector"] = torch.ones(shape[1])

    cases = [
        (lambda t: t.pop(VECTOR), {}, f"no magnitudes of {Q}"),
        (lambda t: t.update({VECTOR: torch.ones(7)}), {}, "other rows of magnitudes"),
        (None, {"use_dora": False}, "its config no use_dora"),
        (embeds, {}, r"embed_tokens \(DoRA\): only linear layers"),
    ]
    for number, (change, config, words) in enumerate(cases):
        made = folder(tmp_path / str(number), adapted, change, **config)
        if config:
            said = (made / "adapter_config.json").read_text()
            (made / "adapter_config.json").write_text(
                said.replace('"use_dora": true', '"use_dora": false')
            )
        with pytest.raises(ModelError, match=words):
            read_adapter(made, targets, 16)
