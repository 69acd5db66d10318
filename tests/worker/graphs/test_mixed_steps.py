"""Steps with prompt chunks, padded and replayed, against eager ones: by the twin of a CUDA graph,
on the attention of GPUs, interpreted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.graphs.inputs import MixedInputs
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.replayed_steps import Counting
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.graphed_steps import BLOCKS, CPU, PAGE, Texts, graphed

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder, changes = tmp_path_factory.mktemp("model"), {"num_hidden_layers": 1, "vocab_size": 210}
    tiny_models.save_checkpoint(folder, "LlamaForCausalLM", **changes)
    triton = BuildContext(CPU, torch.float32, attention=AttentionSelector("triton"))
    return load_model(folder, triton)


@pytest.mark.row("F13.06")
def test_attention_of_gpus_has_one_plan_for_prompts_beside_decode_rows(
    loaded: LoadedModel,
) -> None:
    """Whatever rows a step has, padding and empty rows behind them: short ones over several
    partitions, long ones, as many as there may be, one alone."""
    generator, width, size, most = torch.Generator().manual_seed(0), 140, 18, 6
    call = AttentionSpec(4, 2, 16, 0.25, None, torch.float32, CPU)
    tables = np.arange(most * width, dtype=np.int32).reshape(1, most, width)
    cache = KVCache(loaded.spec, most * width, PAGE, dtype=torch.float32, device=CPU, spare=1)
    pages = torch.randn((most * width + 1, PAGE, 2, 2, 16), generator=generator)
    inputs, backend = MixedInputs(cache, size, most, PAGE * width, CPU), TritonBackend()
    plan = backend.plan(inputs.of(size), call)
    step = plan.step
    assert step.longest == size and step.partitions == 2 and step.split_tokens == size
    for counts, starts in (
        ([1, 9, 1, 4], [540, 40, 0, 513]),
        ([1, 1, 1, 1, 1, 13], [3, 520, 7, 0, 511, 2]),
        ([18], [30]),
        ([2], [0]),
    ):
        rows, total = len(counts), sum(counts)
        batch = AttentionBatch.build_all(counts, starts, tables[:, :rows], PAGE, CPU)
        query = torch.randn((size, 4, 16), generator=generator)
        given = torch.arange(total), torch.arange(total)
        inputs.fill(*given, batch, size)
        assert inputs.tokens[:total].equal(given[0]) and not inputs.tokens[total:].any()
        # A capture holds the plan's work on the device.
        found = backend.forward(backend.plan(inputs.of(size), call), query, pages)[:total]
        wanted = backend.forward(backend.plan(batch, call), query[:total], pages)
        assert torch.equal(found, wanted), counts


@pytest.mark.slow
@pytest.mark.row("F13.06")
def test_whole_steps_on_the_attention_of_gpus(loaded: LoadedModel) -> None:
    """Decode steps, and prompts beside them: padded to a number of rows, or of tokens."""
    eager, replayed = Texts(loaded, 5), Texts(loaded, 5)
    model, counts = graphed(replayed, Sizes((1, 4), PAGE * BLOCKS, mixed=(8, 16)))
    assert not any(layer[:-1].any() for layer in replayed.cache.layers)
    for rows, new, replays in [
        (range(3), [2, 5, 3], 1),
        (range(3), [1] * 3, 1),
        ([1], [1], 1),
        ([0, 1], [1, 1], 1),
        ([0, 1, 3], [1, 1, 6], 1),
        (range(5), [1, 1, 1, 1, 4], 0),  # More rows than there is room for.
        ([4], [17], 0),
        ([1, 4], [1, 15], 1),
    ]:
        before = counts.replays
        wanted, found = eager.step(loaded.model, rows, new), replayed.step(model, rows, new)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        assert counts.replays - before == replays, new
    for ours, theirs in zip(replayed.cache.layers, eager.cache.layers, strict=True):
        torch.testing.assert_close(ours[:-1], theirs[:-1], rtol=0, atol=1e-5)


def test_plans_of_the_host_are_not_captured(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a draft model, say, whose attention another backend serves."""
    monkeypatch.setattr(TritonBackend, "launch_blocker", "it plans on the host")
    assert isinstance(loaded.model, Model) and loaded.model.launch_blocker is not None
    texts, counts = Texts(loaded, 2), Counting()
    model = GraphedModel(loaded.model, texts.cache, Sizes((1,), 32, mixed=(8,)), counts, CPU)
    model.capture()
    texts.step(model, [0], [3])
    assert (counts.captured, counts.replays) == (1, 0)
    texts.step(model, [0], [1])
    assert counts.replays == 1
