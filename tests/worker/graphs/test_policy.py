"""Which steps are captured, and what is said where none are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine_config import resolve
from baton_worker.graphs import Sizes, refuses
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, torch.float32))


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (33, (1, 2, 4, 8, 16, 24, 32, 33)),
    ],
)
def test_sizes(rows: int, sizes: tuple[int, ...]) -> None:
    assert Sizes.up_to(rows, 100) == Sizes(sizes, 100)


def test_large_sizes_are_further_apart() -> None:
    rows = Sizes.up_to(512, 100).rows
    assert len(rows) == 3 + 32 + 8 and rows[-9:-6] == (256, 288, 320) and rows[-1] == 512


def test_the_least_size_that_fits() -> None:
    sizes = Sizes((1, 2, 4, 8), 100)
    assert [sizes.fitting(rows, 100) for rows in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, None]
    assert sizes.fitting(1, 101) is None


def test_one_phrase_for_the_log() -> None:
    assert str(Sizes.up_to(4, 9)) == "graphs of 1, 2, 4 rows of at most 9 tokens"
    assert "1, 2, 4, 8, 16, 24 to 256 rows" in str(Sizes.up_to(256, 9))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cuda_graphs": False}, "--no-cuda-graphs"),
        ({"expert_stats_window": 5}, "--expert-stats-window counts the visits"),
        ({"runtime_stats": True}, "--runtime-stats times layer by layer"),
        ({"data_parallel_size": 2}, "its group agree on every step"),
    ],
)
def test_settings_that_need_every_kernel(
    loaded: LoadedModel, changes: dict[str, Any], said: str
) -> None:
    assert refuses(Config(), GPU, loaded, 1) is None
    assert said in str(refuses(Config(**changes), GPU, loaded, 1))


def test_what_has_no_decode_steps_of_its_own(loaded: LoadedModel) -> None:
    assert refuses(Config(max_replay_rows=0), CPU, loaded, 1) == "--max-replay-rows 0"
    assert refuses(Config(), GPU, loaded, 3) is None
    assert "3 ranks" in str(refuses(Config(), CPU, loaded, 3))
    assert refuses(Config(), GPU, replace(loaded, generates=False), 1) == "the model has none"


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("DeepseekV32ForCausalLM", "the host waits for the keys that an index chooses"),
        ("Lfm2ForCausalLM", "a convolution looks its earlier tokens up on the host"),
        ("MiniMaxForCausalLM", "a layer with a state looks on the host"),
        ("MambaForCausalLM", "a scan looks on the host"),
        ("Qwen3_5ForCausalLM", "a layer with a state looks on the host"),
        (tiny_models.EXAMPLE_UNLISTED, "transformers' own code"),
    ],
)
def test_models_that_are_not_captured_say_what_of_them(
    tmp_path: Path, architecture: str, said: str
) -> None:
    """In float16, for which no kernel in C++ looks instead."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    model = load_model(tmp_path, BuildContext(CPU, torch.float16))
    assert said in str(refuses(Config(), GPU, model, 1))


def test_experts_that_are_counted_on_the_host_are_not_captured(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")
    context = BuildContext(CPU, torch.float32, experts=ExpertKernelSelector("eager"))
    said = "the host waits for the number of tokens that each expert gets"
    assert refuses(Config(), GPU, load_model(tmp_path, context), 1) == said


@pytest.mark.parametrize(
    ("backend", "said"),
    [("grouped", "sorts the rows of each step"), ("reference", "from row to row on the host")],
)
def test_attention_in_plain_torch_is_not_captured(stories: Path, backend: str, said: str) -> None:
    context = BuildContext(CPU, torch.float32, attention=AttentionSelector(backend))
    loaded = load_model(stories, context)
    assert said in str(refuses(Config(), GPU, loaded, 1))


def test_the_choice_is_a_part_of_the_line_at_the_start(loaded: LoadedModel) -> None:
    config = Config(num_gpu_blocks_override=100, block_size=8, max_num_seqs=12, max_replay_rows=0)
    on_cpu = resolve(config, BuildContext(CPU, torch.float32), loaded)
    assert on_cpu.graphs is None
    assert str(on_cpu).endswith("; decode steps run kernel by kernel: --max-replay-rows 0")
    taped = replace(on_cpu, graphs=Sizes((12,), 512, 400))
    assert str(taped).endswith("; steps of at most 12 rows and 400 tokens replayed")
    captured = replace(taped, build=BuildContext(GPU, torch.float32), graphs=Sizes((1, 2), 64))
    assert "; decode steps replayed as graphs of 1, 2 rows of at most 64 tokens;" in str(captured)


def test_sizes_are_bounded_by_settings_and_batch(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_worker.engine.engine_config.refuses", lambda *_: None)
    monkeypatch.setattr("baton_worker.engine.sizing.free_for_all", lambda *_: 1 << 30)
    monkeypatch.setattr("baton_worker.engine.sizing.device_memory", lambda device: None)
    for device, changes, rows, length, tokens in (
        (GPU, {"max_num_seqs": 12, "max_seq_len_to_capture": 64}, (1, 2, 4, 8, 12), 64, 0),
        (GPU, {"max_num_seqs": 4, "max_num_batched_tokens": 100}, (1, 2, 4), 512, 0),
        (GPU, {"max_num_seqs": 12, "max_cudagraph_capture_size": 2}, (1, 2), 512, 0),
        (CPU, {"max_num_seqs": 12, "max_seq_len_to_capture": 64}, (12,), 512, 512),
        (CPU, {"max_num_seqs": 12, "max_replay_rows": 2}, (2,), 512, 512),
        (CPU, {"max_num_seqs": 12, "max_num_batched_tokens": 40}, (12,), 512, 40),
        (CPU, {"max_num_seqs": 12, "max_model_len": 20}, (12,), 20, 240),
    ):
        place = BuildContext(device, torch.float32)
        monkeypatch.setattr("baton_worker.engine.sizing.numbers", lambda *_: [1])
        resolved = resolve(
            Config(num_gpu_blocks_override=1000, block_size=8, **changes), place, loaded
        )
        mixed = [n for n in (16, 32, 64, 96, 128, 192, 256, 384, 512) if device == GPU]
        most = min(length, changes.get("max_num_batched_tokens", length))
        mixed = tuple(n for n in mixed if n <= most)
        assert resolved.graphs == Sizes(rows, length, tokens, mixed)
