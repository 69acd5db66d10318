"""Stages of a pipeline: which layers each has, what they refuse, and that they answer as one."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.errors import SettingsError
from baton_worker import spec
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.config import Config
from baton_worker.distributed.communicator import SingleRank
from baton_worker.distributed.pipeline_parallel import (
    Pipeline,
    check_cut,
    partition,
    rank_stage,
    stage_spec,
)
from baton_worker.executor.join_stages import join_stages
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.block import Absent
from baton_worker.models.build import build
from tests.fakes.two_ranks import TwoRanks
from tests.support import tiny_models
from tests.support.worker.page_driver import Driver

SITE = BuildContext(torch.device("cpu"), torch.float32)
HEADS = spec.Attention(4, 2, 8, 1.0, rope=None)
MODEL = spec.Decoder(16, 10, ((HEADS, spec.Glu(8)),) * 5, spec.Norm(1e-5), spec.Head(tied=True))
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2MoeForCausalLM": {},
    "Gemma2ForCausalLM": {"num_hidden_layers": 6},
    "DeepseekV3ForCausalLM": {},
    "Qwen3NextForCausalLM": {},
    "FalconH1ForCausalLM": {},
    "HunYuanDenseV1ForCausalLM": {},
    "OPTForCausalLM": {},
}
"""A head of its own, experts, windows, latents, states before and beside attention, tied and
projected embeddings."""


@pytest.mark.row("F14.05")
def test_layers_are_dealt_out_as_in_vllm() -> None:
    assert partition(8, 2) == (4, 4)
    assert partition(10, 4) == (2, 3, 3, 2) and partition(7, 2) == (4, 3)
    assert partition(11, 4) == (3, 3, 3, 2)
    with pytest.raises(SettingsError, match="has 3 layers, and a stage needs one"):
        partition(3, 4)
    ranks = SingleRank()
    assert Pipeline(ranks, 1, 2, (1, 4)).layers_of(MODEL) == spec.Stage(1, 5, 5)
    for counts in ((1, 3), (1, 1, 3)):
        with pytest.raises(SettingsError, match="one number for each of 2 stages, of 5 layers"):
            Pipeline(ranks, 0, 2, counts).layers_of(MODEL)
    # The leader samples, so its stage is the last one; the others follow in their order.
    assert [rank_stage(rank, 2, 3) for rank in range(6)] == [2, 2, 0, 0, 1, 1]


def test_a_stage_has_its_layers_under_their_numbers_and_nothing_else() -> None:
    first, middle, last = (
        build(stage_spec(MODEL, spec.Stage(start, end, 5)), SITE)
        for start, end in ((0, 2), (2, 3), (3, 5))
    )
    assert [isinstance(block, Absent) for block in first.blocks] == [False] * 2 + [True] * 3
    assert first.embedding is not None and first.head is first.norm is None
    assert middle.embedding is middle.head is middle.norm is None
    # A tied head has the table of the embedding.
    assert last.embedding is not None and last.head is not None and last.norm is not None
    names = {name for layer in middle.layers() for name, _ in layer.weight_targets()}
    assert names and all(name.startswith("model.layers.2.") for name in names)


def test_what_layers_share_is_not_cut() -> None:
    """From every rank alike, whichever layers it would have."""
    whole = MODEL.layers
    reuse = spec.KVReuse(4, 2, 8, 1.0, rope=None, source=1)
    shared = spec.SharedAttention(4, 2, 8, 1.0, rope=None, block=0)
    cases = {
        "layer 3 reads the KV of layer 1": {3: reuse},
        "layer 4 has the weights of a layer in another stage": {0: shared, 4: shared},
    }
    for why, others in cases.items():
        layers = tuple(
            (others[layer], pair[1]) if layer in others else pair
            for layer, pair in enumerate(whole)
        )
        with pytest.raises(SettingsError, match=f"{why}.*--pp-layer-partition"):
            check_cut(replace(MODEL, layers=layers), (2, 3))
        check_cut(replace(MODEL, layers=layers), (5,))
    with pytest.raises(SettingsError, match="an embedding of its own"):
        check_cut(replace(MODEL, layer_embeddings=spec.LayerEmbeddings(4, 10, "gelu")), (2, 3))


@pytest.mark.row("F14.05")
def test_two_stages_have_the_logits_of_one_process(
    driver: Any, two_ranks: TwoRanks, tmp_path: Path
) -> None:
    """Bit for bit: a prompt, chunks, a prefix hit, and a ragged decode of them all."""
    for architecture, changes in FAMILIES.items():
        folder = tmp_path / architecture
        tiny_models.save_checkpoint(folder, architecture, **changes)
        loaded = load_model(folder, SITE)
        expected, run = answers(driver(loaded, 3)), driver(loaded, 3)
        num_pages = run.cache.num_pages
        with two_ranks.serving(folder, num_pages=num_pages, stages=2) as led:
            run.loaded, run.cache = led.loaded, led.cache
            found = answers(run)
            check_halves(loaded, led.loaded)
        for ours, wanted in zip(found, expected, strict=True):
            assert torch.equal(ours, wanted), architecture


def quarter(folder: Path, rank: int) -> list[list[list[float]]]:
    """The logits of two steps, by one rank of four: half of the heads of half of the layers."""
    torch.set_num_threads(1)
    config = Config(tensor_parallel_size=2, pipeline_parallel_size=2, device="cpu")
    ranks, pipeline = join_stages(folder.with_name("meeting"), rank, config, SITE.device)
    run: Any = Driver(load_model(folder, SITE, split=ModelSplit(ranks, pipeline=pipeline)), 1)
    with torch.inference_mode():
        steps = [run.hidden({0: list(range(3, 30))}), run.hidden({0: [4]})]
        return [run.loaded.model.logits(step).tolist() for step in steps] if rank < 2 else []


@pytest.mark.row("F14.05")
def test_two_stages_of_two_ranks_have_the_tokens_of_one_process(
    driver: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    tiny_models.save_checkpoint(folder, "Qwen3MoeForCausalLM")
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["baton_worker.checkpoint.load"])
    with ProcessPoolExecutor(4, processes) as pool:
        found = [pool.submit(quarter, folder, rank) for rank in range(4)]
        made = [future.result() for future in found]
    run = driver(load_model(folder, SITE), 1)
    for place, tokens in enumerate([list(range(3, 30)), [4]]):
        expected = run.step({0: tokens})[0]
        for rank in (0, 1):
            ours = torch.tensor(made[rank][place])
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def answers(run: Any) -> list[torch.Tensor]:
    """The logits of each step."""
    tokens = [int(token) for token in torch.randint(2, 90, (40,), generator=seeded(1))]
    logits = [run.step({0: tokens})[0]]
    logits += [run.step({1: tokens[at : at + 7]})[1] for at in range(0, 21, 7)]
    run.share(2, with_row=0, num_tokens=24)
    logits += run.step({2: tokens[1:6], 1: tokens[21:30]}).values()
    for _ in range(6):
        step = {row: [int(logits[-1][-1].argmax()) + row] for row in range(3)}
        logits += run.step(step).values()
    return logits


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check_halves(whole: LoadedModel, last: LoadedModel) -> None:
    """A stage holds its own layers and pages alone."""
    stage, num_layers = last.spec.stage, len(whole.spec.layers)
    assert stage is not None and stage.end == num_layers and 0 < stage.start < num_layers
    assert 0 < last.weight_bytes < whole.weight_bytes
    assert last.unstaged == whole.spec
