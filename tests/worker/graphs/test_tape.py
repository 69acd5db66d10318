"""Steps that are replayed as calls of kernels, against those that Python makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.graphs import GraphedModel, Recorder, Sizes, TapeRecorder, Untaped
from baton_worker.graphs.buffer_reuse import shared
from baton_worker.kernels.cpu.call_recorder import Call, CallRecording
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import RmsNorm
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.fakes.replayed_steps import Counting
from tests.support import tiny_models
from tests.support.worker.graphed_steps import (
    BLOCKS,
    CPU,
    DECODED,
    PAGE,
    PROMPTS,
    Texts,
    bits,
    check,
)
from tests.support.worker.lora_folders import write_adapter

pytestmark = pytest.mark.skipif(
    CallRecording.refuses() is not None, reason=str(CallRecording.refuses())
)
ROWS, TOKENS = 16, 160
TAPED = {
    "LlamaForCausalLM": "grouped heads, a rope",
    "Qwen2ForCausalLM": "biases",
    "Qwen3ForCausalLM": "norms of heads",
    "Gemma3ForCausalLM": "windows in page groups, a scale on embeddings",
    "GraniteForCausalLM": "factors on everything",
    "Olmo2ForCausalLM": "norms over all heads",
    "CohereForCausalLM": "layer norms with a weight per head, neighbours that turn",
    "Gemma2ForCausalLM": "logits that are capped",
    "BloomForCausalLM": "no rotation, GELU",
    "NemotronForCausalLM": "a squared ReLU",
    "Qwen2MoeForCausalLM": "a gate on the shared experts",
    "GptOssForCausalLM": "experts whose gate has limits, sinks",
    "Qwen3MoeForCausalLM": "experts by a softmax",
    "Glm4MoeForCausalLM": "experts by a sigmoid, with a correction; shared ones",
    "Qwen3_5ForCausalLM": "delta nets, gates of attention",
    "BambaForCausalLM": "Mamba-2 beside attention",
    "Lfm2ForCausalLM": "short convolutions",
    "DeepseekV3ForCausalLM": "latents",
    "Mistral4ForCausalLM": "latents, queries whose length grows",
    "MiniCPM3ForCausalLM": "latents, halves that turn",
    "Llama4ForCausalLM": "chunks, queries whose length grows",
    "FalconH1ForCausalLM": "attention beside Mamba-2",
    "KimiLinearForCausalLM": "latents without positions beside delta nets",
    "Gemma3nForCausalLM": "several streams, layers that read pages of others",
    "Gemma4ForCausalLM": "embeddings of layers, heads of two widths",
    "Zamba2ForCausalLM": "shared blocks beside Mamba-2, in groups that share memory",
    "MiMoV2FlashForCausalLM": "values narrower than keys",
    "ApertusForCausalLM": "an activation with parameters",
    "LagunaForCausalLM": "gates by softplus, a router whose logits are capped",
    "FalconMambaForCausalLM": "Mamba with norms of what is selected",
}
RAGGED = [
    PROMPTS,
    (range(11), [1, 4, 1, 1, 7, 1, 2, 1, 1, 3, 1]),
    ([3], [6]),
    ([0, 10, 5], [2, 1, 1]),
    (range(9), [1] * 9),
    ([7, 2], [5, 5]),
    (range(11), [15] * 11),
    ([6, 1, 8], [1, 12, 1]),
]
"""The last but one has more tokens than were captured."""


def on_tape(texts: Texts, recorder: Recorder) -> GraphedModel:
    assert isinstance(texts.loaded.model, Model)
    sizes = Sizes((ROWS,), PAGE * BLOCKS, TOKENS)
    made = GraphedModel(texts.loaded.model, texts.cache, sizes, recorder, CPU)
    made.capture()
    return made


def taped(texts: Texts) -> tuple[GraphedModel, Counting]:
    counts = Counting(TapeRecorder())
    made = on_tape(texts, counts)
    assert made.holds()
    counts.replays = 0
    return made, counts


@pytest.mark.row("F11.02")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_replayed_step_mixes_adapters(dtype: torch.dtype, tmp_path: Path) -> None:
    """Which rows have which is no part of a tape, nor is what the adapters are."""
    column = TokenAdapters(3, 512, CPU)
    tiny_model(tmp_path / "base", "Qwen3ForCausalLM")
    loaded = load_model(tmp_path / "base", BuildContext(CPU, dtype, adapters=column))
    assert isinstance(loaded.model, Model)
    eager, replayed = Texts(loaded, 11), Texts(loaded, 11)
    model, counts = taped(replayed)
    targets = LoraTargets(loaded.model, loaded.spec)
    for slot in range(3):
        folder = write_adapter(tmp_path / str(slot), targets.shapes, rank=2 + slot, seed=slot)
        targets.put(slot, read_adapter(folder, targets, 8).pairs)
    mixed = np.array([2, -1, 0, 1, 1, 0, -1, -1, 2, 2, 0])
    for rows, new in [*RAGGED, *DECODED[1:5]]:
        column.write(np.repeat(mixed[list(rows)], new))
        wanted, found = eager.step(loaded.model, rows, new), replayed.step(model, rows, new)
        for ours, theirs in zip(found, wanted, strict=True):
            bits(ours, theirs)
    assert counts.replays > 8


def tiny_model(folder: Path, architecture: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(folder, architecture)
    return load_model(folder, BuildContext(CPU, dtype))


@pytest.mark.row("F13.06")
@pytest.mark.parametrize("architecture", TAPED)
def test_replayed_steps_have_the_bits_of_eager_ones(tmp_path: Path, architecture: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        loaded = tiny_model(tmp_path / str(dtype), architecture, dtype)
        for steps, replayed in ((DECODED, 21), (RAGGED, 11)):
            _, replays = check(loaded, bits, taped, steps)
            assert replays == replayed


def test_states_of_a_prompt_stay_as_they_were(stories: Path) -> None:
    """Whoever keeps them, as a head that drafts does, finds them after the next step."""
    texts = Texts(load_model(stories, BuildContext(CPU, torch.float32)), 2)
    model, _ = taped(texts)
    hidden, _ = texts.step(model, [0, 1], [9, 5])
    kept = hidden.clone()
    texts.step(model, [0, 1], [4, 6])
    assert torch.equal(hidden, kept)


def test_a_replay_of_a_prompt_that_differs_is_found(stories: Path) -> None:
    texts = Texts(load_model(stories, BuildContext(CPU, torch.float32)), 2)
    model, _ = taped(texts)
    assert model._ragged is not None and model.holds()
    plain = model._ragged._recording.replay
    model._ragged._recording.replay = lambda e: plain(e._replace(tokens=e.tokens - 1))  # type: ignore[method-assign]
    assert not model.holds()


@pytest.mark.parametrize("given", [{"kv_cache_dtype": "fp8"}, {"kv_cache_layout": "nhd"}])
def test_pages_of_any_kind(stories: Path, given: dict[str, Any]) -> None:
    """Which are told to a kernel in structures that outlive the call."""
    engine = Engine.build(config(stories, **given))
    assert engine._factory.graphed is not None and engine._factory.graphed.holds()


def config(stories: Path, **given: Any) -> Config:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "num_gpu_blocks_override": 64,
        "max_num_seqs": 8,
        "threads": 1,
    }
    return Config(model=str(stories), **(settings | given))


def test_a_capture_leaves_pages_as_they_are(stories: Path) -> None:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    texts = Texts(loaded, 5)
    taped(texts)
    assert not any(layer[: texts.cache.num_pages].any() for layer in texts.cache.layers)


def test_kernels_share_memory(stories: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of five layers needs about what one of them needs."""
    loaded, sizes = load_model(stories, BuildContext(CPU, torch.float32)), list[tuple[int, int]]()

    def measured(calls: Sequence[Call], made: Sequence[Tensor]) -> tuple[list[Call], Tensor]:
        moved, memory = shared(calls, made)
        sizes.append((sum(tensor.nbytes for tensor in made), memory.nbytes))
        return moved, memory

    monkeypatch.setattr("baton_worker.graphs.tape.shared", measured)
    on_tape(Texts(loaded, 5), TapeRecorder())
    decode, ragged, _head = sizes
    for apart, together in (decode, ragged):
        assert 0 < together < apart / 4


def test_models_that_need_more_than_our_kernels_are_left_to_python(tmp_path: Path) -> None:
    loaded = tiny_model(tmp_path, "MiniMaxForCausalLM")
    with pytest.raises(Untaped, match="torch computes a part of it"):
        on_tape(Texts(loaded, 5), TapeRecorder())


def test_a_model_that_computes_in_torch_says_so(tmp_path: Path) -> None:
    loaded = tiny_model(tmp_path, "GraniteForCausalLM")
    assert isinstance(loaded.model, Model)
    head = loaded.model.head
    plain = type(head).forward
    head.forward = lambda x: torch.softmax(plain(head, x), -1)  # type: ignore[method-assign]
    with pytest.raises(Untaped, match=r"^torch computes a part of it \(_softmax\)$"):
        on_tape(Texts(loaded, 5), TapeRecorder())


def test_a_number_that_the_host_looks_at_is_refused(tmp_path: Path) -> None:
    loaded = tiny_model(tmp_path, "LlamaForCausalLM")
    assert isinstance(loaded.model, Model)
    embedding = loaded.model.embedding
    plain = type(embedding).forward
    embedding.forward = lambda *given: plain(embedding, *given) * given[1].max().item()  # type: ignore[method-assign]
    with pytest.raises(Untaped, match="torch computes a part of it"):
        on_tape(Texts(loaded, 5), TapeRecorder())


@pytest.fixture
def secretive(tmp_path: Path) -> Iterator[Path]:
    tiny_model(tmp_path, "LlamaForCausalLM")
    plain, looked = RmsNorm.forward, [0]

    def forward(self: RmsNorm, x: Tensor) -> Tensor:
        looked[0] += 1
        return plain(self, x) * float(looked[0])

    RmsNorm.forward = forward  # type: ignore[method-assign]
    yield tmp_path
    RmsNorm.forward = plain  # type: ignore[method-assign]


def test_a_model_whose_replays_differ_runs_kernel_by_kernel(
    secretive: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It decides on the host what to compute, which a tape cannot see."""
    with caplog.at_level("INFO"):
        engine = Engine.build(config(secretive))
    assert engine._factory.graphed is None
    assert "replayed ones had other answers" in caplog.text
    assert engine._runner.forward.model is engine._model


def test_a_model_of_one_size_answers_in_the_memory_of_its_recording(stories: Path) -> None:
    """No logits are copied: of many rows they are megabytes."""
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    texts = Texts(loaded, 3)
    model, _ = taped(texts)
    _, first = texts.step(model, range(3), [1] * 3)
    _, second = texts.step(model, range(2), [1] * 2)
    assert first.data_ptr() == second.data_ptr() and (len(first), len(second)) == (3, 2)
