"""PEFT folders in memory: against peft itself, and what does not fit is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.support import tiny_models
from tests.support.worker.adapted_model import Adapted
from tests.support.worker.lora_folders import write_adapter

TOKENS = [7 + (31 * i) % 300 for i in range(40)]
Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.row("F11.03")
@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": "all-linear", "use_rslora": True},
        {
            "target_modules": r".*\.(up_proj|o_proj)",
            "rank_pattern": {"up_proj": 2, r"layers\.1\.self_attn\.o_proj": 7},
            "alpha_pattern": {"o_proj": 5},
        },
        {"target_modules": ["lm_head", "down_proj"], "layers_to_transform": None},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["up_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["q_proj", "o_proj", "up_proj", "lm_head"], "use_dora": True},
    ],
)
def test_answers_like_peft(
    adapted: Adapted, tmp_path: Path, driver: Any, fields: dict[str, Any]
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(adapted.base, dtype=torch.float32)

    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = get_peft_model(
            base(), LoraConfig(r=4, lora_alpha=12, init_lora_weights=False, **fields)
        )
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.mul_(0.1)
            if "lora_magnitude" in name:
                weight.data.mul_(1 + 0.3 * torch.rand_like(weight))
            if "lora_embedding_B" in name or "modules_to_save" in name:
                weight.data.add_(0.1 * torch.randn_like(weight))
        # With its tables or without: peft writes them beside their products if it is told to.
        embeds = "embed_tokens" in fields["target_modules"]
        model.save_pretrained(tmp_path, save_embedding_layers=embeds)
    targets, column = adapted.store.targets, adapted.column
    adapter = read_adapter(tmp_path, targets, 16)
    assert adapter.nbytes > 0
    targets.put(1, adapter.pairs, adapter.wholes)
    column.write(np.ones(len(TOKENS), np.int64))
    ours = driver(adapted.loaded, 1).step({0: TOKENS})[0]
    # Beside another adapter and none: nobody's bits change.
    other = read_adapter(adapted.folders["one"], targets, 16)
    targets.put(0, other.pairs, other.wholes)
    column.write(np.repeat([0, 1, -1], len(TOKENS)))
    mixed = driver(adapted.loaded, 3).step({0: TOKENS, 1: TOKENS, 2: TOKENS})
    assert torch.equal(mixed[1], ours)
    for row, slot in ((0, 0), (2, -1)):
        column.write(np.full(len(TOKENS), slot))
        assert torch.equal(driver(adapted.loaded, 1).step({0: TOKENS})[0], mixed[row])
    targets.put(1, other.pairs, other.wholes)
    assert not column.eager, "the place has another adapter"
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(base(), tmp_path)(torch.tensor([TOKENS])).logits[0]
        plain = base()(torch.tensor([TOKENS])).logits[0]
    assert (wanted - plain).abs().max() > 0.05
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.row("F11.03")
def test_experts_answer_like_peft(tmp_path: Path, driver: Any) -> None:
    """Stacked parameters (`target_parameters`), and the same products for each expert by itself."""
    from peft import LoraConfig, get_peft_model

    for name in ("Qwen2MoeForCausalLM", "GptOssForCausalLM"):
        root, column = tmp_path / name, TokenAdapters(3, 2048, torch.device("cpu"))
        with torch.random.fork_rng():
            torch.manual_seed(2)
            model = tiny_models.save_checkpoint(root / "base", name)
            parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
            fields = {"target_modules": ["q_proj"], "target_parameters": parameters}
            settings = LoraConfig(r=3, lora_alpha=6, init_lora_weights=False, **fields)
            model = get_peft_model(model, settings)
            for parameter, weight in model.named_parameters():
                if "lora_B" in parameter:
                    weight.data.mul_(0.1)
        model.save_pretrained(root / "stacked")
        with torch.no_grad():
            wanted = model(torch.tensor([TOKENS])).logits[0]
            with model.disable_adapter():
                plain = model(torch.tensor([TOKENS])).logits[0]
        assert (wanted - plain).abs().max() > 0.5
        loaded = load_model(
            root / "base", BuildContext(torch.device("cpu"), torch.float32, adapters=column)
        )
        assert isinstance(loaded.model, Model)
        targets = LoraTargets(loaded.model, loaded.spec)
        stacked = read_adapter(root / "stacked", targets, 16)
        each = read_adapter(apart(root / "each", root / "stacked", stacked.pairs), targets, 16)
        targets.put(0, stacked.pairs)
        targets.put(2, each.pairs)
        column.write(np.repeat([0, -1, 2], len(TOKENS)))
        ours = driver(loaded, 3).step(dict.fromkeys(range(3), TOKENS))
        torch.testing.assert_close(ours[0], wanted, rtol=1e-3, atol=1e-3)
        assert torch.equal(ours[2], ours[0])
        column.write(np.zeros(len(TOKENS), np.int64))
        assert torch.equal(driver(loaded, 1).step({0: TOKENS})[0], ours[0])
        base = load_model(root / "base", BuildContext(torch.device("cpu"), torch.float32))
        assert torch.equal(driver(base, 1).step({0: TOKENS})[0], ours[1])
        with pytest.raises(ModelError, match=r"decomposes .*experts.*DoRA"):
            read_adapter(decomposed(root / "each"), targets, 16)
        [module, *_] = (name.split(".0.gate")[0] for name in stacked.pairs if ".0.gate" in name)
        narrow = {module: (8, 8)}
        with pytest.raises(ModelError, match="no parameter of experts"):
            read_adapter(write_adapter(root / "narrow", narrow), targets, 16)


def apart(folder: Path, stacked: Path, pairs: Mapping[str, LoraPair]) -> Path:
    """The same products in a folder with a module for each expert."""
    folder.mkdir()
    stored = {}
    for module, pair in pairs.items():
        stored[f"{module}.lora_A.weight"] = pair.a.contiguous()
        stored[f"{module}.lora_B.weight"] = pair.b.T.contiguous()
    save_file(stored, folder / "adapter_model.safetensors")
    config = json.loads((stacked / "adapter_config.json").read_text())
    del config["target_parameters"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def decomposed(folder: Path) -> Path:
    """An adapter of the same products with magnitudes."""
    path = folder / "adapter_model.safetensors"
    stored = load_file(path)
    for name in [name for name in stored if name.endswith(".lora_B.weight")]:
        stored[name.replace("lora_B.weight", "lora_magnitude_vector")] = stored[name].norm(dim=1)
    save_file(stored, path)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    return folder


def test_its_digest_is_that_of_its_bytes_and_scales(adapted: Adapted, tmp_path: Path) -> None:
    shapes = {Q: adapted.store.targets.shapes[Q]}
    targets = adapted.store.targets

    def digest(folder: str, **config: Any) -> bytes:
        return read_adapter(write_adapter(tmp_path / folder, shapes, **config), targets, 16).digest

    one = digest("a")
    assert len(one) == 16 and digest("b") == one and digest("a", base_model_name_or_path="x") == one
    assert len({one, digest("c", seed=1), digest("d", lora_alpha=9)}) == 3


def broken(folder: Path, change: Any) -> Path:
    stored = load_file(folder / "adapter_model.safetensors")
    change(stored)
    save_file(stored, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("modules", "change", "words"),
    [
        ({"model.layers.0.mlp.experts.3.up_proj": (80, 48)}, None, "takes adapters"),
        ({Q: (96, 40)}, None, "of another model"),
        ({Q: (90, 48)}, None, "of another model"),
        ({Q: None}, lambda t: t.pop(f"base_model.model.{Q}.lora_B.weight"), "one half"),
        (
            {Q: None},
            lambda t: t.update({f"base_model.model.{Q}.lora_A.weight": torch.ones(3)}),
            "no matrix",
        ),
        ({Q: None}, lambda t: t.update({"x.lm_head.weight": torch.ones(2)}), "only whole emb"),
        ({Q: None}, lambda t: t.update({"lm_head.weight": torch.ones(2)}), "of another model"),
        ({Q: None}, lambda t: t.update({f"{Q}.lora_embedding_A": torch.ones(2)}), "one half"),
        ({Q: None, "modules_to_save": ["lm_head"]}, None, "saves lm_head, and does not"),
        (
            {Q: None},
            lambda t: t.update({f"{Q}.lora_magnitude_vector": torch.ones(2)}),
            "no use_dora",
        ),
        (
            {Q: None},
            lambda t: t[f"base_model.model.{Q}.lora_B.weight"].view(-1)[3:4].fill_(torch.nan),
            r"q_proj\.lora_B\.weight that are not finite in float32",
        ),
        ({Q: None, "rank": 20}, None, "--max-lora-rank is 16"),
        ({Q: None, "r": 3}, None, "says rank 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    adapted: Adapted, tmp_path: Path, modules: dict[str, Any], change: Any, words: str
) -> None:
    fields = [name for name in ("rank", "r", "modules_to_save") if name in modules]
    config = {name: modules.pop(name) for name in fields}
    shapes = {m: s or adapted.store.targets.shapes[m] for m, s in modules.items()}
    folder = write_adapter(tmp_path, shapes, **config)
    if change is not None:
        broken(folder, change)
    with pytest.raises(ModelError, match=words):
        read_adapter(folder, adapted.store.targets, 16)


def test_what_is_no_folder_of_peft_is_refused(adapted: Adapted, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no adapter_config"):
        read_adapter(tmp_path, adapted.store.targets, 16)
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        read_adapter(tmp_path, adapted.store.targets, 16)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter(tmp_path, adapted.store.targets, 16)
