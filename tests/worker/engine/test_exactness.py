"""What is exact on a GPU, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.engine.exactness import check, refuses
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_what_depends_on_other_sequences_is_refused(stories: Path, tmp_path: Path) -> None:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    assert refuses(Config(exact=True), loaded) is None
    settings: dict[str, dict[str, Any]] = {
        "an expert group": {"data_parallel_size": 2},
        "adapters": {"enable_lora": True},
        "--moe-backend grouped": {"moe_backend": "grouped"},
    }
    for said, changes in settings.items():
        assert said in str(refuses(Config(exact=True, **changes), loaded))
    tiny_models.save_checkpoint(tmp_path, "MambaForCausalLM")
    mamba = load_model(tmp_path, BuildContext(CPU, torch.float32))
    assert "no kernel of a constant shape" in str(refuses(Config(), mamba))
    with pytest.raises(SettingsError, match="--exact: a part of this model"):
        check(Config(exact=True), GPU, mamba)
    check(Config(exact=True), CPU, mamba)
    check(Config(), GPU, mamba)
    assert refuses(Config(), replace(loaded, model=torch.nn.Identity())) is not None  # type: ignore[arg-type]


def test_backends_whose_sums_depend_on_other_rows_are_not_chosen() -> None:
    from baton_worker.attention import AttentionSpec

    call = AttentionSpec(4, 2, 16, 0.25, None, torch.float32, GPU)
    exact = AttentionSelector(exact=True)
    for name in ("flashinfer", "flash_attn", "reference"):
        assert "depend on what is beside" in str(exact._made(name, call)[1])
    backend, reason = exact._made("triton", call)
    assert reason is None and backend._exact  # type: ignore[attr-defined]
    assert AttentionSelector()._made("reference", call)[1] is None
    assert exact._made("reference", replace(call, device=CPU))[1] is None, "a CPU is exact anyway"
