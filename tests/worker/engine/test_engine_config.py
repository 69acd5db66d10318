"""Auto values become values; what cannot be is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine_config import resolve
from baton_worker.kernels.kv_codes import CODES
from baton_worker.layers.build_context import BuildContext

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, CPU)


def test_facts_of_the_model(loaded: LoadedModel) -> None:
    resolved = resolve(
        Config(num_gpu_blocks_override=100, block_size=8, max_num_seqs=4), CPU, loaded
    )
    assert (resolved.num_pages, resolved.max_model_len, resolved.vocab_size) == (100, 512, 512)
    # 5 layers, keys and values, 4 heads of 8, 4 bytes.
    assert resolved.page_bytes == 8 * 5 * 2 * 4 * 8 * 4
    assert resolved.kv_bytes == 100 * resolved.page_bytes
    assert resolved.weight_bytes >= 260_000 * 4
    assert resolved.eos_ids == (2,) and resolved.dtype_name == "float32"


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_pages_of_codes_hold_more_tokens_in_as_many_bytes(stories: Path, kind: str) -> None:
    config = Config(
        device="cpu", kv_cache_dtype=kind, block_size=8, max_kv_bytes=5 * 2**20, dtype="float32"
    )
    context = BuildContext.from_config(config)
    codes = CODES[kind]
    assert context.codes is codes
    loaded = load_model(stories, replace(CPU, codes=codes))
    coded, plain = resolve(config, context, loaded), resolve(config, CPU, loaded)
    # 5 layers, keys and values, 4 heads of 8, a byte each, and a scale.
    assert coded.page_bytes == 8 * 5 * 2 * 4 * (8 + 4)
    assert coded.num_pages == 5 * 2**20 // coded.page_bytes > 2 * plain.num_pages
    assert f"pages of 8 tokens (4 MiB) in {kind} head by head;" in str(coded)


def test_what_was_resolved_reads_as_a_line(loaded: LoadedModel) -> None:
    config = Config(
        num_gpu_blocks_override=64, threads=1, dtype="float32", device="cpu", max_replay_rows=0
    )
    text = str(resolve(config, BuildContext.from_config(config), loaded))
    assert text.startswith("cpu, float32, 1 threads; 64 pages of 16 tokens (")
    assert "sequences of at most 512 tokens; decode steps run kernel by kernel" in text


def test_few_pages_are_told(loaded: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        resolved = resolve(Config(num_gpu_blocks_override=4), CPU, loaded)
    assert resolved.max_model_len == 64 and "at most 64 tokens" in caplog.text


def test_more_length_than_the_model_has_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(SettingsError, match="512"):
        resolve(Config(max_model_len=513), CPU, loaded)
