"""Steps of models with recurrent layers, padded and replayed, against the kernels in C++: by the
twin of a CUDA graph, on the kernels of GPUs, interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.graphs import Sizes
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.host_link import HostLink
from tests.fakes.replayed_steps import replaying
from tests.fakes.triton_interpreter import interpreter
from tests.oracles.checkpoints import MAKERS
from tests.support import tiny_models
from tests.support.worker import gpu_kernels
from tests.support.worker.graphed_steps import BLOCKS, CPU, PAGE, Texts, graphed
from tests.support.worker.scheduled_engine import House

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


HYBRID, PAGES = "FalconH1ForCausalLM", 24
MIXED = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "MambaForCausalLM": {"num_hidden_layers": 1},
    "Mamba2ForCausalLM": {"num_hidden_layers": 1},
    "Plamo2ForCausalLM": {},
    HYBRID: {"num_hidden_layers": 1},
    "MiniMaxForCausalLM": MIXED,
    "Qwen3NextForCausalLM": {**MIXED, "mlp_only_layers": [0, 1]},
    "KimiLinearForCausalLM": {**MIXED, "first_k_dense_replace": 2},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
}
STEPS: list[tuple[Any, list[int], int]] = [
    (range(3), [2, 5, 9], 1),
    (range(3), [1] * 3, 1),
    ([1], [1], 1),
    ([0, 1], [1, 1], 1),
    ([0, 1, 3], [1, 1, 10], 1),
    (range(5), [1, 1, 1, 1, 12], 0),  # More rows than there is room for.
    ([4], [17], 0),
    ([1, 4], [1, 15], 1),
    *[([4, 2, 1, 3], [1] * 4, 1)] * 6,
]
"""Rows, new tokens, and whether that is a replay: four rows begin pages in the last six steps."""


def on_cpu_and_on_triton(
    folder: Path, architecture: str, patch: pytest.MonkeyPatch
) -> tuple[LoadedModel, LoadedModel]:
    """The same weights over kernels in C++, and over those of GPUs."""
    if architecture in MAKERS:
        MAKERS[architecture](folder)
    else:
        tiny_models.save_checkpoint(folder, architecture, vocab_size=210, **MODELS[architecture])
    plain = load_model(folder, BuildContext(CPU, torch.float32))
    gpu_kernels.use(patch)
    return plain, load_model(folder, gpu_kernels.context())


@pytest.mark.slow
@pytest.mark.row("F13.06")
@pytest.mark.parametrize("architecture", [name for name in MODELS if name != HYBRID])
def test_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    loaded, on_triton = on_cpu_and_on_triton(tmp_path, architecture, monkeypatch)
    assert isinstance(on_triton.model, Model) and on_triton.model.capture_blocker is None
    eager, replayed = Texts(loaded, 5), Texts(on_triton, 5)
    model, counts = graphed(replayed, Sizes((1, 4), PAGE * BLOCKS, mixed=(8, 16)))
    for rows, new, replays in STEPS:
        before = counts.replays
        wanted, found = eager.step(loaded.model, rows, new), replayed.step(model, rows, new)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert counts.replays - before == replays, new


@pytest.mark.slow
@pytest.mark.row("F13.06", "F13.08")
def test_tokens_of_launched_steps_where_pages_are_scarce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows arrive while others decode, are preempted, and begin pages while they do."""
    loaded, on_triton = on_cpu_and_on_triton(tmp_path, HYBRID, monkeypatch)
    said = list[list[list[int]]]()
    for model, link, pages in ((loaded, None, 256), (on_triton, HostLink(), PAGES)):
        house = House(model, SchedulerOptions(max_steps_per_plan=1), num_pages=pages, link=link)
        counts = replaying(house.runner, model.model, (1, 2, 4), 64) if link else None
        for row in range(4):
            house.submit([5 + row, 9, 4, 7, 3, 8], Sampling(14, temperature=0.0))
            house.turn()
        said.append([*house.finish().values()])
    assert said[1] == said[0] and house.state.counters.preemptions > 0
    decoded = sum(len(r.rows) > 0 for r in house.results)
    assert counts is not None and counts.replays >= decoded / 2
