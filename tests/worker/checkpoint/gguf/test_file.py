"""GGUF files, written with the reference writer and read back as models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from tests.support import tiny_models
from tests.support.worker.gguf_files import (
    K_TYPES,
    PLAIN,
    SIZES,
    TABLE_TYPES,
    WRITABLE,
    Writer,
    write,
)

CPU = torch.device("cpu")
DOWN = "model.layers.1.mlp.down_proj.weight"


DEFAULT_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}


def load(path: Path) -> LoadedModel:
    return load_model(path, BuildContext(CPU, torch.float32))


def assert_same(path: Path, oracle: Any, driver: Any) -> None:
    tokens = list(range(2, 40))
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0]
    ours = driver(load(path), 1).step({0: tokens})[0]
    assert (ours - expected).abs().max() < 1e-3


@pytest.mark.parametrize("kind", WRITABLE, ids=lambda kind: kind.name)
def test_every_block_type_loads(tmp_path: Path, driver: Any, kind: Type) -> None:
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    assert_same(write(tmp_path / "tiny.gguf", "llama", oracle, kind), oracle, driver)


def test_blocks_run_as_they_are(tmp_path: Path) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    floats = load(write(tmp_path / "floats.gguf", "llama", oracle, Type.F32))
    for kind in (kind for kind in WRITABLE if kind.name[0] == "Q"):
        packed = load(write(tmp_path / f"{kind.name}.gguf", "llama", oracle, kind))
        for few, many in zip(packed.model.layers(), floats.model.layers(), strict=True):
            if isinstance(few, Linear):
                assert few.weight is None, kind.name
                assert few.weight_bytes < many.weight_bytes / 3, kind.name


@pytest.mark.row("F03.14")
@pytest.mark.parametrize("kind", [Type.Q8_0, *K_TYPES, *TABLE_TYPES], ids=lambda kind: kind.name)
def test_packed_blocks_choose_the_tokens_of_their_dequantised_twin(
    tmp_path: Path, driver: Any, kind: Type
) -> None:
    """The oracle holds what the reference reader dequantises from the same file."""
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    loaded = load(write(tmp_path / "tiny.gguf", "llama", oracle, {DOWN: kind}))
    down = loaded.model.blocks[1].ffn.down
    assert down.weight is None and down.weight_bytes * 8 < 9 * 64 * 256
    x = torch.randn(5, 256)
    expected = x @ oracle.model.layers[1].mlp.down_proj.weight.T
    error = (down(x) - expected).abs().max() / expected.abs().max()
    assert error < 1e-3
    prompt = list(range(2, 20))
    [output] = driver(loaded, 1).greedy([prompt], 24)
    with torch.inference_mode():
        logits = oracle(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    assert logits.argmax(-1).tolist() == output


@pytest.mark.parametrize(
    ("arch", "architecture", "changes"),
    [
        ("llama", "LlamaForCausalLM", PLAIN | {"tie_word_embeddings": True}),
        ("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": False}),
        ("qwen2", "Qwen2ForCausalLM", {"use_sliding_window": False, "tie_word_embeddings": False}),
        ("qwen3", "Qwen3ForCausalLM", {"attention_bias": False}),
        ("llama", "MixtralForCausalLM", {"sliding_window": None}),
        ("qwen2moe", "Qwen2MoeForCausalLM", {"decoder_sparse_step": 1, "mlp_only_layers": []}),
        ("qwen3moe", "Qwen3MoeForCausalLM", {"attention_bias": False, "mlp_only_layers": []}),
        ("arcee", "ArceeForCausalLM", {"attention_bias": False, "mlp_bias": False}),
        ("granite", "GraniteForCausalLM", {"attention_bias": False, "mlp_bias": False}),
        ("olmo2", "Olmo2ForCausalLM", {"attention_bias": False}),
        ("olmoe", "OlmoeForCausalLM", {"attention_bias": False}),
        ("seed_oss", "SeedOssForCausalLM", {"attention_out_bias": False, "mlp_bias": False}),
        ("starcoder2", "Starcoder2ForCausalLM", {"sliding_window": None}),
        ("command-r", "CohereForCausalLM", {"attention_bias": False, "use_qk_norm": False}),
        ("phi3", "Phi3ForCausalLM", {"rope_parameters": HALF, "sliding_window": None}),
        ("glm4", "Glm4ForCausalLM", {}),
        ("stablelm", "StableLmForCausalLM", {"qk_layernorm": False}),
        ("ernie4_5", "Ernie4_5ForCausalLM", {"use_bias": False}),
        ("hunyuan-dense", "HunYuanDenseV1ForCausalLM", {"attention_bias": False} | DEFAULT_ROPE),
        ("nemotron", "NemotronForCausalLM", {"attention_bias": False, "mlp_bias": False}),
        ("gemma", "GemmaForCausalLM", {"attention_bias": False}),
        ("gemma2", "Gemma2ForCausalLM", {"query_pre_attn_scalar": 16}),
        ("gemma3", "Gemma3ForCausalLM", {"query_pre_attn_scalar": 16}),
    ],
)
def test_every_architecture_loads(
    tmp_path: Path, driver: Any, arch: str, architecture: str, changes: dict[str, Any]
) -> None:
    oracle = tiny_models.tiny_model(architecture, **SIZES, **changes)
    loaded = load(write(tmp_path / "tiny.gguf", arch, oracle, Type.F32))
    assert loaded.spec.head.tied == oracle.config.tie_word_embeddings
    assert (loaded.max_length, loaded.vocab_size) == (
        tiny_models.MAX_LENGTH,
        tiny_models.VOCAB_SIZE,
    )
    assert loaded.eos_token_ids == (1,)
    assert_same(tmp_path / "tiny.gguf", oracle, driver)


def test_llama3_scaling_is_a_tensor(tmp_path: Path, driver: Any) -> None:
    changes = PLAIN | {"rope_parameters": tiny_models.LLAMA3_ROPE}
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **changes)
    writer = Writer(tmp_path / "tiny.gguf", "llama", oracle)
    writer.metadata()
    plain = 10_000.0 ** -(torch.arange(0, 16, 2).float() / 16)
    factors = plain / oracle.model.rotary_emb.inv_freq
    assert factors.max() > 1
    writer.file.add_tensor("rope_freqs.weight", factors.numpy())
    for name, parameter in oracle.named_parameters():
        writer.tensor(name, parameter, Type.F32)
    assert_same(writer.close(), oracle, driver)


def test_long_rope_is_two_tensors(tmp_path: Path, driver: Any) -> None:
    rope = tiny_models.TRAITS["Phi3ForCausalLM"]["rope_parameters"] | {
        "long_factor": [2.0, 3.0, 3.5, 4.0],
        "short_factor": [1.0, 1.1, 1.3, 1.5],
    }
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 1}
    oracle = tiny_models.tiny_model("Phi3ForCausalLM", **SIZES, sliding_window=None, **changes)
    writer = Writer(tmp_path / "tiny.gguf", "phi3", oracle)
    writer.metadata()
    writer.file.add_rope_scaling_attn_factors(rope["attention_factor"])
    writer.file.add_rope_scaling_orig_ctx_len(1)
    for kind in ("long", "short"):
        factors = np.array(rope[f"{kind}_factor"], np.float32)
        writer.file.add_tensor(f"rope_factors_{kind}.weight", factors)
    for name, parameter in oracle.named_parameters():
        writer.tensor(name, parameter, Type.F32)
    assert_same(writer.close(), oracle, driver)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_is_metadata(tmp_path: Path, driver: Any, kind: str) -> None:
    scaling = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = 64
    changes = {"use_sliding_window": False, "rope_parameters": scaling}
    oracle = tiny_models.tiny_model("Qwen2ForCausalLM", **SIZES, **changes)
    writer = Writer(tmp_path / "tiny.gguf", "qwen2", oracle)
    writer.metadata()
    writer.file.add_rope_scaling_type(gguf.RopeScalingType(kind))
    writer.file.add_rope_scaling_factor(4.0)
    if kind == "yarn":
        writer.file.add_rope_scaling_orig_ctx_len(64)
    for name, parameter in oracle.named_parameters():
        writer.tensor(name, parameter, Type.F32)
    assert_same(writer.close(), oracle, driver)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path)
    return error.value.message


def test_an_unreadable_type_is_refused_by_name(tmp_path: Path) -> None:
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN)
    writer = Writer(tmp_path / "tiny.gguf", "llama", oracle)
    writer.metadata()
    for name, parameter in oracle.named_parameters():
        if name == DOWN:
            values = parameter.detach().numpy().astype(np.float64)
            writer.file.add_tensor("blk.1.ffn_down.weight", values)
        else:
            writer.tensor(name, parameter, Type.F32)
    assert "blk.1.ffn_down.weight has GGUF type F64" in refusal(writer.close())


def test_leftover_tensors_are_listed(tmp_path: Path) -> None:
    oracle = tiny_models.tiny_model("Qwen2ForCausalLM", **SIZES)
    writer = Writer(tmp_path / "tiny.gguf", "qwen2", oracle)
    writer.metadata()
    writer.file.add_tensor("v.patch_embd.weight", np.zeros((2, 2), np.float32))
    for name, parameter in oracle.named_parameters():
        writer.tensor(name, parameter, Type.F32)
    assert "not used: v.patch_embd.weight" in refusal(writer.close())


def test_unknown_architectures_and_contents_are_refused(tmp_path: Path) -> None:
    for architecture, contents, words in (
        ("rwkv6", "model", "'rwkv6' is not supported. Known: llama, qwen2, qwen3"),
        ("llama", "adapter", "Serve the model, with the adapter's PEFT folder in --lora-modules"),
        ("", "imatrix", "no model"),
    ):
        file = gguf.GGUFWriter(tmp_path / "tiny.gguf", architecture)
        file.add_type(contents)
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.write_tensors_to_file()
        file.close()
        assert words in refusal(tmp_path / "tiny.gguf")


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN)
    writer = Writer(tmp_path / "tiny.gguf", "llama", oracle)
    writer.metadata()
    assert "token_embd.weight" in refusal(writer.close())


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to read"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert "cannot be read as GGUF" in refusal(tmp_path / "tiny.gguf")
