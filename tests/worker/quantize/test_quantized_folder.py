"""A checkpoint that is rounded once answers as one that is rounded whenever it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from baton.checkpoint.part_folders import PARTS
from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.quantized_loading import QuantizedLoader
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.config import Quantize
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.moe import Experts
from baton_worker.quantization.blocks import SCHEMES
from baton_worker.quantize.quantized_folder import write
from baton_worker.quantize.shard_writer import ShardWriter
from tests.fakes.threaded_ranks import Threaded, together
from tests.support import quantized_checkpoints, tiny_llava, tiny_models
from tests.support.quantized_checkpoints import SIZES

CPU = torch.device("cpu")
PROMPT = list(range(2, 40))
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SIZES | {"tie_word_embeddings": True},
    "Phi3ForCausalLM": SIZES | {"num_attention_heads": 8},
    "GPT2LMHeadModel": {"hidden_size": 64, "num_attention_heads": 4, "n_inner": 128},
    "Qwen3MoeForCausalLM": SIZES | {"moe_intermediate_size": 32},
    "LlavaForConditionalGeneration": SIZES,
}
"""A head that shares the table, fused and transposed matrices, stacked experts, and a tower."""


def rounded(source: Path, out: Path, scheme: Quantize, **options: Any) -> str:
    given = {"dtype": None, "shards": ShardWriter(1 << 30), "console": Console(quiet=True)}
    return write(source, out, scheme, **(given | options))


def loaded(path: Path, quantization: Quantize = "none") -> LoadedModel:
    return load_model(path, BuildContext(CPU, torch.float32, quantization=quantization))


def _schemes(architecture: str) -> list[Quantize]:
    """Layouts of tensors with two schemes, and every scheme with one or two layouts."""
    if architecture == "LlamaForCausalLM":
        return [scheme for scheme in SCHEMES if scheme != "experts_int8"]
    return ["int8", "experts_int8" if "Moe" in architecture else "int4"]


@pytest.mark.row("F03.33")
def test_logits_are_those_of_rounding_while_loading(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    widened = list[int]()
    monkeypatch.setattr(QuantizedLoader, "_report", lambda self: widened.append(len(self._widened)))
    for architecture, sizes in MODELS.items():
        source = tmp_path / architecture
        if architecture == "LlavaForConditionalGeneration":
            tiny_llava.save(source, **sizes)
        else:
            tiny_models.save_checkpoint(source, architecture, **sizes)
        for scheme in _schemes(architecture):
            out = tmp_path / f"{architecture}-{scheme}"
            rounded(source, out, scheme)
            theirs, ours = loaded(source, scheme), loaded(out)
            assert ours.weight_bytes == theirs.weight_bytes, architecture
            first, second = (driver(model, 1).step({0: PROMPT})[0] for model in (theirs, ours))
            assert torch.equal(first, second), (architecture, scheme)
    assert not any(widened)


def test_each_rank_takes_its_part(tmp_path: Path, driver: Any) -> None:
    """Of packed weights; the tied head, which is rounded while loading, too."""
    source, out = tmp_path / "given", tmp_path / "made"
    tiny_models.save_checkpoint(source, "LlamaForCausalLM", **MODELS["LlamaForCausalLM"])
    rounded(source, out, "int4")
    whole = driver(loaded(out), 1).step({0: PROMPT})[0]

    def part(ranks: Threaded) -> tuple[torch.Tensor, int]:
        mine = load_model(out, BuildContext(CPU, torch.float32), split=ModelSplit(ranks))
        return driver(mine, 1).step({0: PROMPT})[0], mine.weight_bytes

    for found, held in together(2, part):
        assert float((found - whole).abs().max()) < 1e-4
        assert held < 0.75 * loaded(out).weight_bytes


@pytest.mark.row("F03.16")
def test_a_checkpoint_of_floats_may_ask_for_experts_in_eight_bits(
    tmp_path: Path, driver: Any
) -> None:
    """As `--quantization experts_int8` does, which rounds experts and nothing else."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM", **MODELS["Qwen3MoeForCausalLM"])
    floats, rounded_ones = loaded(tmp_path), loaded(tmp_path, "experts_int8")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "experts_int8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = loaded(tmp_path)
    first, second, plain = (
        driver(model, 1).step({0: PROMPT})[0] for model in (rounded_ones, asked, floats)
    )
    assert torch.equal(first, second) and not torch.equal(first, plain)
    # Of experts a little more than a quarter is left, of the rest all.
    experts = sum(
        layer.weight_bytes for layer in floats.model.layers() if isinstance(layer, Experts)
    )
    saved = floats.weight_bytes - asked.weight_bytes
    assert 0.7 * experts < saved < 0.75 * experts


def test_what_a_checkpoint_stores_under_the_name_is_left_alone(tmp_path: Path, driver: Any) -> None:
    """`--quantization fp8` rounds floats; of an FP8 checkpoint it changes nothing."""
    settings, method = {"quant_method": "fp8"}, quantized_checkpoints.fp8()
    settings["activation_scheme"] = "dynamic"
    quantized_checkpoints.save(tmp_path, "LlamaForCausalLM", settings, method, **SIZES)
    first, second = (
        driver(loaded(tmp_path, how), 1).step({0: PROMPT})[0] for how in ("none", "fp8")
    )
    assert torch.equal(first, second)


def test_files_are_bounded_and_all_but_weights_is_copied(tmp_path: Path) -> None:
    source, out = tmp_path / "given", tmp_path / "made"
    tiny_models.save_checkpoint(source, "LlamaForCausalLM", **SIZES)
    tiny_models.save_tokenizer(source)
    modules = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (source / "old.pth").write_bytes(b"weights of another format")
    said = rounded(source, out, "int8", dtype=torch.bfloat16, shards=ShardWriter(64 << 10))
    assert "weights in int8" in said
    kept = {path.name for path in source.iterdir()} - {"model.safetensors", "old.pth"}
    made = {path.name for path in out.iterdir()}
    assert made >= kept and "old.pth" not in made and "model.safetensors" not in made
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (out / "1_Pooling/config.json").is_file()
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    files = [load_file(path) for path in sorted(out.glob("*.safetensors"))]
    assert len(files) > 1 and {*index} == {name for tensors in files for name in tensors}
    assert all(t.dtype is not torch.float32 for tensors in files for t in tensors.values())
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["scheme"] == "int8"
    assert config["torch_dtype"] == "bfloat16"
    loaded(out)


def test_what_cannot_be_rounded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    source, out = tmp_path / "given", tmp_path / "made"
    tiny_models.save_checkpoint(source, "LlamaForCausalLM", **SIZES)

    def refusal(path: Path) -> str:
        with pytest.raises(ModelError) as error:
            rounded(path, out, "int8")
        assert not out.exists()
        return error.value.message

    with pytest.raises(SettingsError, match=r"none rounds nothing\. Give one of int8, int4"):
        rounded(source, out, "none")
    with pytest.raises(SettingsError, match="exists"):
        rounded(source, source, "int8")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert "a.gguf is a GGUF file" in refusal(tmp_path / "a.gguf")
    assert "no config.json" in refusal(tmp_path)
    for part in PARTS:
        (tmp_path / "vila" / part).mkdir(parents=True)
        (tmp_path / "vila" / part / "config.json").write_text("{}")
    (tmp_path / "vila" / "config.json").write_text("{}")
    assert "in a folder of its own" in refusal(tmp_path / "vila")
    packed = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    quantized_checkpoints.save(
        tmp_path / "gptq", "LlamaForCausalLM", packed, quantized_checkpoints.gptq(), **SIZES
    )
    assert "quantised already, with gptq" in refusal(tmp_path / "gptq")
    tensors = load_file(source / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors")
    assert "it lacks model.layers.0.mlp.up_proj.weight" in refusal(source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["StrangeModel"]}))
    assert "StrangeModel has no spec" in refusal(source)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
