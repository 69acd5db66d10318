"""What ranks have in common before the first step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from baton.errors import SettingsError
from baton.process import standby
from baton.process.segments import SegmentKeeper
from baton_worker.checkpoint.bf16_expansion import is_expanded
from baton_worker.config import Config
from baton_worker.distributed.communicator import SingleRank
from baton_worker.engine.startup import (
    load,
    load_drafter,
    page_settings,
    prepare,
    shared_pages,
    weight_keeper,
)
from baton_worker.kernels.cpu.huge_pages import ARENA
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import KVCache
from baton_worker.platform import machine


@pytest.mark.parametrize("flag", ["pipeline_parallel_size", "decode_context_parallel_size"])
def test_a_head_with_layers_needs_what_it_reads_on_one_rank(stories: Path, flag: str) -> None:
    head = '{"method": "mtp", "num_speculative_tokens": 1}'
    config = Config(model=str(stories), speculative_config=head, **{flag: 2})
    target: Any = None
    with pytest.raises(SettingsError, match=flag.replace("_", "-")):
        load_drafter(config, target, stories, prepare(config), SingleRank(), ())


def test_every_setting_of_the_pages_reaches_them(stories: Path) -> None:
    config = Config(
        model=str(stories),
        device="cpu",
        dtype="float32",
        kv_cache_dtype="fp8",
        kv_cache_layout="hnd",
        num_gpu_blocks_override=7,
        block_size=8,
        threads=1,
    )
    context = prepare(config)
    assert torch.get_num_threads() == 1
    loaded, resolved, _ = load(config, stories, context, SingleRank())
    cache = KVCache(**page_settings(loaded, resolved))
    assert (cache.num_pages, cache.page_size, cache.layout) == (7, 8, Layout.HND)
    assert cache.codes is context.codes and cache.groups == resolved.groups
    assert resolved.ranks == 1 and resolved.weight_bytes == loaded.weight_bytes


def test_weights_are_shared_under_a_supervisor_on_a_cpu(
    stories: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(model=str(stories), run_dir=tmp_path, num_gpu_blocks_override=7)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert shared_pages(config, cpu) is None, "nobody keeps them"
    with SegmentKeeper(tmp_path), caplog.at_level(logging.INFO):
        assert shared_pages(config.model_copy(update={"share_weights": False}), cpu) is None
        assert shared_pages(config, gpu) is None
        assert weight_keeper(config, stories, (), gpu) is None and "no keeper" in caplog.text
        standby.hold()
        try:
            load(config, stories, prepare(config), SingleRank())
        finally:
            standby.call()
        assert "of packed weights are in memory that workers share" in caplog.text
    assert ARENA._written is None


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_pages_have_the_dtype_of_the_model(
    stories: Path, monkeypatch: pytest.MonkeyPatch, dtype: Literal["auto", "float32"]
) -> None:
    """Also on a CPU that does not multiply bfloat16, where it is the model that decides."""
    monkeypatch.setattr(machine, "has_fast_bfloat16", lambda: False)
    config = Config(model=str(stories), device="cpu", dtype=dtype, num_gpu_blocks_override=7)
    context = prepare(config)
    assert context.dtype is torch.float32
    loaded, resolved, _ = load(config, stories, context, SingleRank())
    wanted = torch.bfloat16 if dtype == "auto" and is_expanded(loaded.spec) else torch.float32
    assert loaded.model.dtype is wanted
    assert page_settings(loaded, resolved)["dtype"] is wanted
