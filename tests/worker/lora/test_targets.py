"""Products beside the weights of a model against a checkpoint that they are merged into, for every
kind of layer and every way to store one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.support import tiny_models
from tests.support.worker.lora_folders import merge, write_adapter

CPU = torch.device("cpu")
TOKENS = [7 + (31 * i) % 300 for i in range(40)]
DECOMPOSED = ("Phi3ForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM")
"""Of these an adapter has magnitudes too."""
TURNED = {"GPT2LMHeadModel": ("c_attn", "c_proj", "c_fc")}
"""Modules that are stored as [in, out]."""


def modules(folder: Path, targets: LoraTargets, turned: tuple[str, ...]) -> dict[str, Any]:
    """Every module of a checkpoint that takes adapters, and its shape (out, in)."""
    found = {}
    for path in folder.glob("*.safetensors"):
        for name, weight in load_file(path).items():
            module = name.removesuffix(".weight")
            if name.endswith(".weight") and weight.ndim == 2 and targets.takes(module):
                shape = weight.shape[::-1] if module.endswith(turned) else weight.shape
                found[module] = tuple(shape)
    return found


@pytest.mark.row("F11.03")
@pytest.mark.parametrize(
    ("architecture", "number"),
    [
        ("LlamaForCausalLM", 22),
        ("Phi3ForCausalLM", 13),  # q, k, v and gate, up in one stored tensor each.
        ("GPT2LMHeadModel", 12),  # The same, the other way round.
        ("GPTNeoXForCausalLM", 13),  # q, k, v head by head.
        ("Qwen2MoeForCausalLM", 1),
        ("DeepseekV32ForCausalLM", 1),
        ("Qwen3NextForCausalLM", 1),
        ("Mamba2ForCausalLM", 1),
        ("JambaForCausalLM", 1),
        ("Lfm2ForCausalLM", 1),
        ("Qwen3VLForConditionalGeneration", 1),  # Stored under other names.
        ("GraniteForCausalLM", 1),  # Its head is the table of its embeddings.
    ],
)
def test_equals_the_merged_checkpoint(
    architecture: str, number: int, tmp_path: Path, driver: Any
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(tmp_path / "base", architecture)
    column = TokenAdapters(2, 2048, CPU)
    loaded = load_model(tmp_path / "base", BuildContext(CPU, torch.float32, adapters=column))
    assert isinstance(loaded.model, Model)
    targets, turned = LoraTargets(loaded.model, loaded.spec), TURNED.get(architecture, ("?",))
    shapes = modules(tmp_path / "base", targets, turned)
    assert len(shapes) >= number
    adapter = write_adapter(tmp_path / "adapter", shapes, scale=0.03)
    targets.put(1, read_adapter(adapter, targets, 64).pairs)
    both, adapters = {module for module in shapes if module.endswith(turned)}, [adapter]
    if architecture in DECOMPOSED:
        dora = write_adapter(tmp_path / "dora", shapes, scale=0.03, magnitude=0.2)
        targets.put(0, read_adapter(dora, targets, 64).pairs)
        adapters.append(dora)
    column.write(np.repeat([1, -1, 0], len(TOKENS)))
    ours = driver(loaded, 3).step({0: TOKENS, 1: TOKENS, 2: TOKENS})
    base = alone(load(tmp_path / "base"), driver)
    assert torch.equal(ours[1], base), "a row without an adapter has the bits of the base"
    for row, folder in zip((0, 2), adapters, strict=False):
        merged = merge(tmp_path / "base", folder, tmp_path / f"merged-{row}", both)
        wanted = alone(load(merged), driver)
        assert (wanted - base).abs().max() > 0.3
        torch.testing.assert_close(ours[row], wanted, rtol=1e-3, atol=1e-3)


def load(folder: Path) -> LoadedModel:
    return load_model(folder, BuildContext(CPU, torch.float32))


def alone(loaded: LoadedModel, driver: Any) -> torch.Tensor:
    # Beside another row, as a fallback without kernels may look at how many there are.
    logits: torch.Tensor = driver(loaded, 2).step({0: TOKENS, 1: TOKENS})[0]
    return logits


@pytest.mark.row("F11.05", "F03.33")
@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_a_quantised_base_takes_the_same_products(
    quantize: Any, tmp_path: Path, driver: Any
) -> None:
    size = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(tmp_path / "base", "LlamaForCausalLM", **size)
    column = TokenAdapters(2, 2048, CPU)
    logits = {}
    for name, rounded in (("floats", "none"), ("codes", quantize)):
        context = BuildContext(CPU, torch.float32, adapters=column, quantization=rounded)
        loaded = load_model(tmp_path / "base", context)
        assert isinstance(loaded.model, Model)
        targets = LoraTargets(loaded.model, loaded.spec)
        adapter = write_adapter(tmp_path / "adapter", targets.shapes, scale=0.3)
        targets.put(0, read_adapter(adapter, targets, 64).pairs)
        for adapted in (0, -1):
            column.write(np.full(len(TOKENS), adapted))
            logits[name, adapted] = driver(loaded, 1).step({0: TOKENS})[0]
    plain = load_model(tmp_path / "base", BuildContext(CPU, torch.float32, quantization=quantize))
    assert torch.equal(logits["codes", -1], driver(plain, 1).step({0: TOKENS})[0])
    moved = (logits["floats", 0] - logits["floats", -1]).abs().mean()
    error = (logits["codes", 0] - logits["floats", 0]).abs().mean()
    assert error < 0.5 * moved, "the products are there, and the rounding is small beside them"


@pytest.mark.row("F11.02")
def test_a_row_has_its_bits_whatever_the_others_have(tmp_path: Path, driver: Any) -> None:
    """In bfloat16, with the gate inside its product."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(tmp_path / "base", "Qwen3ForCausalLM")
    column = TokenAdapters(3, 2048, CPU)
    loaded = load_model(tmp_path / "base", BuildContext(CPU, torch.bfloat16, adapters=column))
    assert isinstance(loaded.model, Model)
    targets = LoraTargets(loaded.model, loaded.spec)
    for slot in range(3):
        folder = write_adapter(tmp_path / str(slot), targets.shapes, rank=3 + slot, seed=slot)
        targets.put(slot, read_adapter(folder, targets, 64).pairs)
    mixed = [2, -1, 0, 1, 1, 0]
    lengths = [5, 9, 40, 1, 17, 3]
    column.write(np.repeat(mixed, lengths))
    together = driver(loaded, 6).step({row: TOKENS[:n] for row, n in enumerate(lengths)})
    for row, (adapter, length) in enumerate(zip(mixed, lengths, strict=True)):
        column.write(np.full(length, adapter))
        assert torch.equal(driver(loaded, 1).step({0: TOKENS[:length]})[0], together[row])
