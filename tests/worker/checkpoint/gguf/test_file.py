"""GGUF files, written with the reference writer and read back as models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from baton.errors import ModelError
from baton_worker.checkpoint.load import LoadedModel, load_model
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.linear import Linear
from tests.support import tiny_models

CPU = torch.device("cpu")
# Rows must be whole blocks: 32 values, or 256 for the K types.
SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}
PLAIN = {"attention_bias": False, "mlp_bias": False, "rope_parameters": None}
WRITABLE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
K_TYPES = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
DOWN = "model.layers.1.mlp.down_proj.weight"


DEFAULT_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
PERMUTED = ("llama", "granite", "arcee")
"""Architectures whose query and key rows llama.cpp's converter interleaves."""
EXTRA = {
    "num_experts": "add_expert_count",
    "num_local_experts": "add_expert_count",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "attention_multiplier": "add_attention_scale",
    "logits_scaling": "add_logit_scale",
    "logit_scale": "add_logit_scale",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "sliding_window": "add_sliding_window",
}
"""Field of a config, and the method of the writer that stores it."""


def permute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """`permute` of llama.cpp's convert_hf_to_gguf.py."""
    split = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def blocks(values: np.ndarray[Any, Any], kind: Type) -> np.ndarray[Any, Any]:
    """Values as GGUF stores them; K types, which Python cannot quantise, as random small bytes."""
    if kind in K_TYPES:
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (values.shape[0], values.shape[1] // size * num_bytes)
        return np.random.default_rng(0).integers(0, 60, shape, dtype=np.uint8)
    return gguf.quants.quantize(values, kind)


class Writer:
    """Writes a transformers model as GGUF, and rounds the model to what was written."""

    def __init__(self, path: Path, arch: str, oracle: Any) -> None:
        self.path, self.arch, self.oracle, self.c = path, arch, oracle, oracle.config
        self.file = gguf.GGUFWriter(path, arch)
        kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
        self.names = gguf.get_tensor_name_map(kind, self.c.num_hidden_layers)

    def metadata(self) -> None:
        f, c = self.file, self.c
        f.add_block_count(c.num_hidden_layers)
        f.add_context_length(c.max_position_embeddings)
        f.add_embedding_length(c.hidden_size)
        f.add_feed_forward_length(c.intermediate_size)
        f.add_head_count(c.num_attention_heads)
        f.add_head_count_kv(c.num_key_value_heads)
        if hasattr(c, "rms_norm_eps"):
            f.add_layer_norm_rms_eps(c.rms_norm_eps)
        rope = c.rope_parameters.get("full_attention", c.rope_parameters)
        f.add_rope_freq_base(rope["rope_theta"])
        if "partial_rotary_factor" in rope:
            head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
            f.add_rope_dimension_count(int(head * rope["partial_rotary_factor"]))
        if rope["rope_type"] == "linear" and self.arch == "gemma3":
            f.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            f.add_rope_scaling_factor(rope["factor"])
            f.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
        f.add_eos_token_id(1)
        if getattr(c, "head_dim", None):
            f.add_key_length(c.head_dim)
        for field in ("norm_epsilon", "layer_norm_eps", "norm_eps"):
            if getattr(c, field, None):
                f.add_layer_norm_eps(getattr(c, field))
        for field, add in EXTRA.items():
            if getattr(c, field, None) is not None:
                getattr(f, add)(getattr(c, field))

    def tensor(self, name: str, parameter: torch.Tensor, kind: Type) -> None:
        values = parameter.detach().numpy().copy()
        if self.arch in PERMUTED and ".q_proj." in name:
            values = permute(values, self.c.num_attention_heads)
        if self.arch in PERMUTED and ".k_proj." in name:
            values = permute(values, self.c.num_key_value_heads)
        if self.arch.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
            values += 1
        if ".experts.gate_up_proj" in name:
            self.experts(name, np.split(values, 2, axis=1), ("gate", "up"))
            return
        if ".experts.down_proj" in name:
            self.experts(name, [values], ("down",))
            return
        stored = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1 or kind is Type.F32:
            self.file.add_tensor(stored, values)
            return
        data = blocks(values, kind)
        self.file.add_tensor(stored, data, raw_dtype=kind)
        assert ".q_proj." not in name or kind in WRITABLE
        rounded = gguf.quants.dequantize(blocks(parameter.detach().numpy(), kind), kind)
        parameter.data.copy_(torch.from_numpy(rounded.copy()))

    def experts(self, name: str, parts: list[np.ndarray[Any, Any]], roles: Iterable[str]) -> None:
        """One tensor per role, of all experts."""
        layer = name.split(".")[2]
        for part, role in zip(parts, roles, strict=True):
            stacked = np.ascontiguousarray(part)
            self.file.add_tensor(f"blk.{layer}.ffn_{role}_exps.weight", stacked)

    def close(self) -> Path:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()
        return self.path


def write(path: Path, arch: str, oracle: Any, kinds: dict[str, Type] | Type) -> Path:
    writer = Writer(path, arch, oracle)
    writer.metadata()
    for name, parameter in oracle.named_parameters():
        kind = kinds if isinstance(kinds, Type) else kinds.get(name, Type.F32)
        writer.tensor(name, parameter, kind)
    return writer.close()


def load(path: Path) -> LoadedModel:
    return load_model(path, device=CPU, dtype=torch.float32)


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


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q4_1], ids=lambda kind: kind.name)
def test_blocks_run_as_they_are(tmp_path: Path, kind: Type) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    packed = load(write(tmp_path / "packed.gguf", "llama", oracle, kind))
    floats = load(write(tmp_path / "floats.gguf", "llama", oracle, Type.F32))
    for few, many in zip(packed.model.layers(), floats.model.layers(), strict=True):
        if isinstance(few, Linear):
            assert few.weight is None and few.weight_bytes < many.weight_bytes / 3


@pytest.mark.row("F03.14")
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_K, Type.Q6_K], ids=lambda kind: kind.name)
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


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_k_types_load(tmp_path: Path, driver: Any, kind: Type) -> None:
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN, head_dim=16)
    assert_same(write(tmp_path / "tiny.gguf", "llama", oracle, {DOWN: kind}), oracle, driver)


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


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    file = gguf.GGUFWriter(tmp_path / "tiny.gguf", "rwkv6")
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    assert "'rwkv6' is not supported. Known: llama, qwen2, qwen3" in refusal(tmp_path / "tiny.gguf")


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    oracle = tiny_models.tiny_model("LlamaForCausalLM", **SIZES, **PLAIN)
    writer = Writer(tmp_path / "tiny.gguf", "llama", oracle)
    writer.metadata()
    assert "token_embd.weight" in refusal(writer.close())


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to read"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert "cannot be read as GGUF" in refusal(tmp_path / "tiny.gguf")
