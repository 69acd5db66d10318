"""Models over pages in either order: the same logits to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_transfer.wire_format import (
    block_bytes,
    extents,
    read,
    write,
)
from baton_worker.layers.attention import gqa
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU = torch.device("cpu")
TEXTS = [list(range(2, 40)), list(range(5, 14)), [3]]
NAMES = [
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "GptOssForCausalLM",
    "BloomForCausalLM",
    "DeepseekV3ForCausalLM",
    tiny_models.EXAMPLE_UNLISTED,
]
"""Head norms, soft caps, sinks, ALiBi, latents, and what runs in the code of transformers."""


def logits(driver: Any, path: Path, layout: Layout, kind: str) -> torch.Tensor:
    """Of texts run in chunks beside each other, then of tokens decoded together."""
    codes = CODES.get(kind)
    loaded = load_model(path, BuildContext(CPU, torch.float32, codes=codes, layout=layout))
    run = driver(loaded, len(TEXTS), codes=codes, layout=layout)
    assert run.cache.layout is layout
    steps = [run.step({0: TEXTS[0][:7], 1: TEXTS[1]}), run.step({0: TEXTS[0][7:], 2: TEXTS[2]})]
    steps.append(run.step({row: [9] for row in range(3)}))
    return torch.cat([answer for step in steps for answer in step.values()])


@pytest.mark.row("F12.10")
@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_same_bits(tmp_path: Path, driver: Any, name: str) -> None:
    tiny_models.save_checkpoint(tmp_path, name)
    first, second = (logits(driver, tmp_path, layout, "auto") for layout in Layout)
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("with_kernels", [True, False])
def test_pages_of_codes_too(
    tmp_path: Path, driver: Any, kind: str, with_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_kernels:
        monkeypatch.setattr(gqa, "refuses", lambda *_: "not today")
    tiny_models.save_checkpoint(tmp_path, "Qwen3ForCausalLM")
    first, second = (logits(driver, tmp_path, layout, kind) for layout in Layout)
    assert torch.equal(first, second)


@pytest.mark.row("F12.10")
@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM"])
def test_a_sequence_goes_on_over_keys_from_a_worker_of_the_other_layout(
    tmp_path: Path, driver: Any, name: str
) -> None:
    tiny_models.save_checkpoint(tmp_path, name)
    runs = []
    for layout, page_size in ((Layout.NHD, 4), (Layout.HND, 8)):
        loaded = load_model(tmp_path, BuildContext(CPU, torch.float32, layout=layout))
        runs.append(driver(loaded, 1, page_size=page_size, layout=layout))
    source, target = runs
    prefilled = source.step({0: TEXTS[0]})
    here, there = (np.array(run.tables) for run in runs)
    for extent in extents(target.cache, 0, len(TEXTS[0])):
        block = np.zeros(block_bytes(source.cache, extent), np.uint8)
        read(source.cache, here, extent, block)
        write(target.cache, there, extent, block)
    target.lengths[0] = source.lengths[0]
    assert target.decode(prefilled, 12) == source.decode(prefilled, 12)
