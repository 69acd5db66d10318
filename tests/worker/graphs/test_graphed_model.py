"""Decode steps that are padded and replayed from memory of their own, against eager ones.

The recorder is the twin of a CUDA graph: it calls what was captured. So this is all of it but the
capture itself, for which see `test_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.graphs.inputs import DecodeInputs
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.replayed_steps import Counting, replaying
from tests.fakes.scheduler_planner import Planner
from tests.fakes.scheduler_planner import Sequence as Row
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.graphed_steps import (
    CPU,
    PAGE,
    SIZES,
    WHO,
    Texts,
    bits,
    check,
    graphed,
)
from tests.support.worker.runner_cases import VARIED, planner_of, varied
from tests.support.worker.scheduled_engine import House, busy

ARCHITECTURES = {
    "LlamaForCausalLM": "grouped heads",
    "BloomForCausalLM": "ALiBi",
    "Gemma3ForCausalLM": "windows in page groups of one shape",
    "GptOssForCausalLM": "sinks and experts",
    "Qwen3MoeForCausalLM": "experts",
    "MiMoV2FlashForCausalLM": "page groups of several shapes",
    "Llama4ForCausalLM": "chunks",
}


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, torch.float32))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def some_model(request: pytest.FixtureRequest, tmp_path_factory: Any) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(folder, request.param)
    return load_model(folder, BuildContext(CPU, torch.float32))


@pytest.mark.row("F13.06")
def test_padded_steps_have_the_bits_of_eager_ones(some_model: LoadedModel) -> None:
    _, replays = check(some_model, bits)
    assert replays == len(WHO) * 2


@pytest.mark.row("F13.06")
def test_padding_writes_to_the_spare_page_alone(loaded: LoadedModel) -> None:
    texts = Texts(loaded, 5)
    model, _ = graphed(texts)
    assert not any(layer[:-1].any() for layer in texts.cache.layers), "a capture leaves no trace"
    texts.step(model, range(5), [6] * 5)
    before = [layer.clone() for layer in texts.cache.layers]
    texts.step(model, range(5), [1] * 5)  # Of 8 rows three are padding.
    slots = {int(texts.tables[0, row, 1]) * PAGE + 2 for row in range(5)}
    for old, new in zip(before, texts.cache.layers, strict=True):
        changed = (old != new).flatten(2).any(2).flatten().nonzero()[:, 0].tolist()
        assert slots <= set(changed) <= slots | {texts.cache.num_pages * PAGE}


@pytest.mark.row("F13.06")
def test_steps_that_are_not_captured_run_as_ever(loaded: LoadedModel) -> None:
    """Prompts, more rows than there is a size for, longer rows, texts that see both ways."""
    eager, replayed = Texts(loaded, 5), Texts(loaded, 5)
    model, counts = graphed(replayed, Sizes((1, 4), 12))
    for rows, new in [
        (range(5), [2, 1, 3, 9, 5]),
        (range(5), [1] * 5),
        ([0, 1], [1, 2]),
        ([3, 4], [1, 1]),
        ([3, 4], [1, 1]),
        ([3], [1]),
    ]:
        wanted, found = eager.step(loaded.model, rows, new), replayed.step(model, rows, new)
        bits(found[1], wanted[1])
    assert counts.replays == 2, "rows 3 and 4 once, row 3 at its twelfth token; then it is longer"
    batch = AttentionBatch.build([1], [0], [[0]], PAGE, CPU)
    zero, both = torch.zeros(1, dtype=torch.int64), by_length((1,), CPU)
    model.forward(zero, zero, batch, replayed.cache, both)
    assert counts.replays == 2


def test_logits_are_asked_for_once_and_for_all_rows(loaded: LoadedModel) -> None:
    """They are the memory of the graph, and whoever samples changes them."""
    texts = Texts(loaded, 3)
    model, _ = graphed(texts)
    hidden, logits = texts.step(model, range(3), [1] * 3)
    kept = logits.clone()
    with torch.inference_mode():
        logits.fill_(-torch.inf)
    bits(model.logits(hidden), kept)
    bits(model.logits(hidden[1:]), kept[1:])
    states = hidden.clone()
    texts.step(model, range(3), [1] * 3)
    assert torch.equal(hidden, states), "states that somebody keeps stay as they were"


def test_before_it_has_captured_it_is_the_model(loaded: LoadedModel) -> None:
    texts, counts = Texts(loaded, 2), Counting()
    assert isinstance(loaded.model, Model)
    model = GraphedModel(loaded.model, texts.cache, SIZES, counts, CPU)
    wanted = Texts(loaded, 2).step(loaded.model, [0, 1], [1, 1])
    bits(texts.step(model, [0, 1], [1, 1])[1], wanted[1])
    assert counts.replays == 0


def replayed_planner(loaded: LoadedModel) -> tuple[Planner, Counting]:
    planner = planner_of(loaded)
    return planner, replaying(planner.target, loaded.model, (1, 2, 4, 8, 16))


@pytest.mark.row("F13.06")
def test_the_same_tokens_and_log_probabilities(loaded: LoadedModel) -> None:
    """Greedy, truncated, penalised, biased, ruled; alone, together, while others come and go."""
    wanted, found = varied(), varied()
    for rows, planner in ((wanted, planner_of(loaded)), (found, replayed_planner(loaded)[0])):
        for row in rows:
            planner.add(row)
            passer = planner.add(Row([1, 403], Sampling(3, seed=99, logprobs=1)))
            for _ in range(3):
                planner.step()
            assert passer.over
        planner.finish()
    assert all(
        len(row.log) == sampling.max_tokens for row, sampling in zip(found, VARIED, strict=True)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.log, ours.ranks) == (theirs.log, theirs.ranks)
        assert ours.chosen == pytest.approx(theirs.chosen, abs=1e-5)
        assert [[t for t, _ in top] for top in ours.tops] == [
            [t for t, _ in top] for top in theirs.tops
        ]


@pytest.mark.row("F13.06")
@pytest.mark.parametrize("pages", [64, 30])
def test_the_same_tokens_under_a_scheduler(loaded: LoadedModel, pages: int) -> None:
    """Plans ahead of results and of several steps, arrivals, an abort, preemption."""
    house = House(loaded, num_pages=pages)
    counts = replaying(house.runner, loaded.model)
    assert busy(house) == busy(House(loaded))
    assert counts.replays > len(house.results) / 2
    assert pages == 64 or house.state.counters.preemptions > 0


def test_a_row_that_is_not_finite_fails_alone(loaded: LoadedModel) -> None:
    """A page of a text is broken; padding and the others do not see it."""
    texts = Texts(loaded, 3)
    model, _ = graphed(texts)
    texts.step(model, range(3), [6] * 3)
    for layer in texts.cache.layers:
        layer[int(texts.tables[0, 1, 0])] = torch.nan
    _, logits = texts.step(model, range(3), [1] * 3)
    assert logits.isfinite().all(1).tolist() == [True, False, True]
    _, logits = texts.step(model, [0], [1])
    assert logits.isfinite().all()


@contextmanager
def on_triton() -> Iterator[None]:
    pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")
    with interpreter():
        yield


@pytest.mark.row("F13.06")
@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_gpus_has_one_plan_for_rows_of_any_length(
    loaded: LoadedModel, window: int | None
) -> None:
    """Cut into the partitions of the longest row, of which most rows have fewer."""
    call = AttentionSpec(4, 2, 16, 0.25, window, torch.float32, CPU)
    generator = torch.Generator().manual_seed(0)
    rows, starts, width = 3, [600, 3, 61], 300
    tables = np.arange(rows * width, dtype=np.int32).reshape(1, rows, width)
    cache = KVCache(loaded.spec, rows * width, PAGE, dtype=torch.float32, device=CPU, spare=1)
    batch = AttentionBatch.build_all([1] * rows, starts, tables, PAGE, CPU)
    pages = torch.randn((rows * width + 1, PAGE, 2, 2, 16), generator=generator)
    query = torch.randn((4, 4, 16), generator=generator)
    inputs, backend = DecodeInputs(cache, 4, PAGE * width, CPU), TritonBackend()
    with on_triton():
        plan = backend.plan(inputs.batch(4), call)
        assert plan.step.partitions == 3 and plan.step.split_tokens == 4
        inputs.write(torch.tensor([7, 8, 9]), torch.tensor(starts), batch)
        found = backend.forward(plan, query, pages)[:rows]
        wanted = backend.forward(backend.plan(batch, call), query[:rows], pages)
    assert torch.equal(found, wanted)
