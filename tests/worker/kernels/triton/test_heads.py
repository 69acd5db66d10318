"""Norms, rotation and KV write in one launch, against one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.page_layout import Layout
from baton_worker.layers.attention import gqa
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models
from tests.support.worker.graphed_steps import Texts


@pytest.mark.row("F21.02")
def test_whole_models_have_the_numbers_of_one_launch_after_another(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With norms of heads and without, all channels rotated or a part of them, in both layouts."""
    from baton_worker.kernels.triton import heads

    if device.type == "cuda":
        pytest.skip("tests/gpu has whole models")
    seen, plain = list[int](), heads.TritonHeads.__call__

    def watched(self: Any, *given: torch.Tensor) -> None:
        seen.append(len(given[0]))
        plain(self, *given)

    monkeypatch.setattr(heads.TritonHeads, "__call__", watched)
    for architecture, layout in (
        ("LlamaForCausalLM", Layout.NHD),
        ("Qwen3ForCausalLM", Layout.HND),
        ("NemotronForCausalLM", Layout.NHD),
    ):
        folder = tmp_path / architecture
        tiny_models.save_checkpoint(folder, architecture, num_hidden_layers=1)
        found = []
        for fused in (False, True):
            site = BuildContext(
                device, torch.float32, attention=AttentionSelector("reference"), layout=layout
            )
            texts = Texts(load_model(folder, site), 3)
            seen.clear()
            with monkeypatch.context() as patch:
                patch.setattr(gqa, "runs", lambda device, fused=fused: fused)
                patch.setattr(gqa, "refuses", lambda *_: "of this test")
                steps = [texts.step(texts.loaded.model, [0, 1, 2], n) for n in ([5, 1, 9], [1] * 3)]
            assert seen == ([15, 3] if fused else []), architecture
            found.append([*(logits for _, logits in steps), *texts.cache.layers])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
