"""Norms, rotation and KV write in one launch, against one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.rope import HeadNorm
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
            context = BuildContext(
                device, torch.float32, attention=AttentionSelector("reference"), layout=layout
            )
            texts = Texts(load_model(folder, context), 3)
            seen.clear()
            with monkeypatch.context() as patch:
                patch.setattr(gqa, "runs", lambda device, fused=fused: fused)
                patch.setattr(gqa, "refuses", lambda *_: "of this test")
                steps = [texts.step(texts.loaded.model, [0, 1, 2], n) for n in ([5, 1, 9], [1] * 3)]
            assert seen == ([15, 3] if fused else []), architecture
            found.append([*(logits for _, logits in steps), *texts.cache.layers])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.row("F21.02")
@pytest.mark.parametrize("given", [False, True])
def test_codes_are_those_of_one_launch_after_another(given: bool, device: torch.device) -> None:
    """With norms and channels that are not rotated; a row that is broken, and scales that cut."""
    from baton_worker.kernels.triton import kv_write
    from baton_worker.kernels.triton.heads import TritonHeads

    codes, generator = CODES["fp8"], torch.Generator().manual_seed(0)
    heads = torch.randn(3, 8, 20, generator=generator).to(device)
    heads[1, 4, 3], heads[2, 7, 19] = float("nan"), float("inf")
    cos, sin = torch.randn(2, 3, 1, 12, generator=generator).to(device)
    scales = torch.full((4, 1), 0.002, device=device) if given else None
    slots, shape = torch.tensor([5, 0, 3], device=device), (2, 3, 2, 2, 20 + codes.tail)
    norms = tuple(HeadNorm(torch.rand(20, generator=generator).to(device), 1e-5) for _ in range(2))
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 20, "dim": 12, "norms": norms}
    found, expected = (torch.zeros(shape, dtype=torch.uint8, device=device) for _ in range(2))
    floats, plain = torch.zeros(2, 3, 2, 2, 20, device=device), heads.clone()
    TritonHeads(**sizes)(plain, cos, sin, slots, floats)
    placed = floats.view(6, 4, 20)[slots]
    kv_write.put(placed, slots, expected, codes, scales)
    TritonHeads(**sizes, codes=codes, scales=scales)(heads, cos, sin, slots, found)
    assert found.equal(expected) and found.any()
    assert heads[:, :4].equal(plain[:, :4])
