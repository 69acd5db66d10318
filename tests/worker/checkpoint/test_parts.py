"""A checkpoint in parts, one for each of several ranks, which are threads here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.config import Quantize
from baton_worker.distributed.communicator import SingleRank
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.linear import Linear
from baton_worker.layers.moe.moe import Experts
from tests.fakes.threaded_ranks import Threaded, together
from tests.support import tiny_models
from tests.support.worker.gguf_files import PLAIN, SIZES, write

CPU = torch.device("cpu")
TOKENS = list(range(2, 40))
needs_kernels = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)


def load(
    path: Path,
    ranks: Threaded | None = None,
    quantize: Quantize = "none",
    experts: str | None = None,
) -> LoadedModel:
    context = BuildContext(CPU, torch.float32, quantization=quantize)
    split = ModelSplit(ranks or SingleRank(), experts=experts)
    return load_model(path, context, split=split)


def answers(path: Path, driver: Any, size: int, **changes: Any) -> list[Tensor]:
    """What each of so many ranks answers: a prompt, then one token more."""

    def part(ranks: Threaded) -> Tensor:
        run = driver(load(path, ranks, **changes), 1)
        return torch.cat([run.step({0: TOKENS})[0], run.step({0: [7]})[0]])

    return together(size, part)


@pytest.mark.row("F14.03")
@pytest.mark.parametrize(("size", "kv_heads"), [(4, 2), (4, 8), (3, 3), (8, 2), (2, 1)])
@pytest.mark.parametrize("tied", [False, True])
def test_any_number_of_ranks_answers_as_one(
    tmp_path: Path, driver: Any, size: int, kv_heads: int, tied: bool
) -> None:
    """Key heads are dealt out or repeated; the vocabulary does not come out even."""
    heads = 6 if size == 3 else 8
    model = tiny_models.save_checkpoint(
        tmp_path,
        "LlamaForCausalLM",
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=96,
        hidden_size=96,
        vocab_size=325,
        tie_word_embeddings=tied,
    )
    with torch.inference_mode():
        expected = model(torch.tensor([[*TOKENS, 7]])).logits[0]
    for found in answers(tmp_path, driver, size):
        assert (found - expected).abs().max() < 1e-3


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_rounded_weights_are_those_of_one_rank(tmp_path: Path, driver: Any, quantize: str) -> None:
    """No group of columns is torn apart, so every code is the same."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM", **sizes, head_dim=16)
    (expected,) = answers(tmp_path, driver, 1, quantize=quantize)
    (floats,) = answers(tmp_path, driver, 1)
    for found in answers(tmp_path, driver, 2, quantize=quantize):
        assert (found - expected).abs().max() < 1e-4 < (found - floats).abs().max()


def test_a_weight_that_could_not_be_rounded_in_parts_is_refused(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM", intermediate_size=96)
    with pytest.raises(SettingsError, match=r"down_proj\.weight is rounded in groups of 32"):
        together(2, lambda ranks: load(tmp_path, ranks, quantize="int8"))


@needs_kernels
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q4_1], ids=lambda kind: kind.name)
def test_stored_blocks_are_cut_and_run_as_they_are(tmp_path: Path, driver: Any, kind: Type) -> None:
    oracle = tiny_models.tiny_model(
        "LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16, vocab_size=323
    )
    path = write(tmp_path / "tiny.gguf", "llama", oracle, kind)
    (expected,) = answers(path, driver, 1)
    for found in answers(path, driver, 2):
        assert (found - expected).abs().max() < 1e-4
    for loaded in together(2, lambda ranks: load(path, ranks)):
        linears = [layer for layer in loaded.model.layers() if isinstance(layer, Linear)]
        assert linears and all(layer.weight is None for layer in linears)


def test_stored_blocks_are_not_torn_apart(tmp_path: Path) -> None:
    down = "model.layers.1.mlp.down_proj.weight"
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    path = write(tmp_path / "tiny.gguf", "llama", oracle, {down: Type.Q4_K})
    with pytest.raises(SettingsError, match=f"{down} is stored in blocks of 256 columns, and a"):
        together(2, lambda ranks: load(path, ranks))


@pytest.mark.row("F14.04")
def test_each_rank_has_its_rows_of_the_vocabulary(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM", vocab_size=323)
    for loaded in together(2, lambda ranks: load(tmp_path, ranks)):
        assert loaded.vocab_size == 323 and loaded.spec.vocab == 162
        tables = [layer for layer in loaded.model.layers() if isinstance(layer, Table)]
        assert [table.weight.shape[0] for table in tables if table.weight is not None] == [162]


@pytest.mark.row("F06.21")
@pytest.mark.parametrize("placement", ["linear", "round_robin"])
@pytest.mark.parametrize(
    "architecture", ["Qwen2MoeForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM"]
)
def test_each_rank_has_its_experts_and_a_part_of_all_else(
    tmp_path: Path, driver: Any, architecture: str, placement: str
) -> None:
    """A shared expert with a gate of its own, groups of experts, and stacked ones with biases."""
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 96}
    sizes |= {"shared_expert_intermediate_size": 36} if architecture.startswith("Qwen2") else {}
    tiny_models.save_checkpoint(tmp_path, architecture, **sizes)
    (expected,) = answers(tmp_path, driver, 1)
    for found in answers(tmp_path, driver, 3, experts=placement):
        assert (found - expected).abs().max() < 1e-3
    whole = expert_bytes(load(tmp_path))
    parts = together(3, lambda ranks: expert_bytes(load(tmp_path, ranks, experts=placement)))
    assert sum(parts) == whole and max(parts) < whole // 2


def test_experts_of_other_ranks_are_not_widened(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")
    (expected,) = answers(tmp_path, driver, 1)
    plain, widened = SafetensorsFolder.tensors, Counter[str]()

    def packed(folder: SafetensorsFolder, spec: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in plain(folder, spec):
            yield name, Packed(name, tensor, widened) if ".experts." in name else tensor

    monkeypatch.setattr(SafetensorsFolder, "tensors", packed)
    for found in answers(tmp_path, driver, 2, experts="linear"):
        assert (found - expected).abs().max() < 1e-3
    assert len(widened) == 2 * 8 * 3 and set(widened.values()) == {1}


class Packed:
    """A weight that no kernel runs as it is, and who has widened it."""

    def __init__(self, name: str, tensor: Any, widened: Counter[str]) -> None:
        self.shape, self._name, self._tensor, self._widened = tensor.shape, name, tensor, widened

    def blocks(self) -> None:
        return None

    def dequantise(self) -> Any:
        self._widened[self._name] += 1
        return self._tensor


def expert_bytes(loaded: LoadedModel) -> int:
    layers = loaded.model.layers()
    return sum(layer.weight_bytes for layer in layers if isinstance(layer, Experts))


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_whole_experts_are_rounded_as_on_one_rank(
    tmp_path: Path, driver: Any, quantize: str
) -> None:
    """Also where a part of an expert could not be."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "num_attention_heads": 4}
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM", **sizes, head_dim=16)
    (expected,) = answers(tmp_path, driver, 1, quantize=quantize)
    for found in answers(tmp_path, driver, 2, quantize=quantize, experts="linear"):
        assert (found - expected).abs().max() < 1e-3
    with pytest.raises(SettingsError, match="rounded in groups of 32 columns, and a part has 16"):
        together(2, lambda ranks: load(tmp_path, ranks, quantize=quantize))


def test_a_checkpoint_that_does_not_fit_is_refused_by_every_part(tmp_path: Path) -> None:
    """Its shapes are compared with those of the whole model."""
    from safetensors.torch import load_file, save_file

    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    key = "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, key: torch.zeros(8, 48)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"is \[8, 48\] .* wants \[16, 48\]"):
        together(2, lambda ranks: load(tmp_path, ranks))
