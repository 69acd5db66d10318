"""GGUF files: metadata to a config, tensor names to Hugging Face names, blocks to floats.

Follows the GGUF specification and `convert_hf_to_gguf.py` of llama.cpp, whose steps are undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.models.config import as_ids
from baton_worker.models.names import Names
from baton_worker.models.spec import Decoder

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # Mistral is written as llama too
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """One GGUF file, memory-mapped; tensors are dequantised one at a time."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, OSError, IndexError) as error:
            raise ModelError(f"{path} cannot be read as GGUF: {error}.") from error
        self._stored = {tensor.name: tensor for tensor in self._reader.tensors}
        if self._field("split.count", 1) > 1:
            raise ModelError(
                f"{path.name} is one part of a split GGUF; join it with llama-gguf-split --merge."
            )
        self._kind = self._architecture()
        self.config = self._config()
        self.eos_token_ids = tuple(
            dict.fromkeys(
                token
                for key in ("eos_token_id", "eot_token_id")
                for token in as_ids(self._field(f"tokenizer.ggml.{key}"))
            )
        )

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        """Every tensor as float32, under its Hugging Face name, in its Hugging Face layout."""
        names = self._names(spec)
        for stored, tensor in self._stored.items():
            if stored == _ROPE_FACTORS:
                continue
            values = _dequantise(tensor)
            if self._kind == "llama" and ".attn_q." in stored:
                values = _unpermute(values, self.config.num_attention_heads)
            elif self._kind == "llama" and ".attn_k." in stored:
                values = _unpermute(values, self.config.num_key_value_heads)
            module, _, suffix = stored.rpartition(".")
            name = f"{names[module]}.{suffix}" if module in names else stored
            yield name, torch.from_numpy(np.require(values, requirements=["C", "W"]))

    def _names(self, spec: Decoder) -> dict[str, str]:
        """GGUF module name to Hugging Face module name, for every role of every layer."""
        table = gguf.get_tensor_name_map(_gguf_architecture(self._kind), len(spec.layers))
        ours = Names(spec.names).every(len(spec.layers))
        return {stored: name for name in ours if (stored := table.get_name(name)) is not None}

    def _architecture(self) -> str:
        kind = self._field("general.architecture")
        if kind not in ARCHITECTURES:
            raise ModelError(
                f"GGUF architecture '{kind}' is not supported. Known: {', '.join(ARCHITECTURES)}. "
                "To add it, extend the table in baton_worker/models/gguf.py and, if its spec is "
                "missing, baton_worker/models/families/."
            )
        return str(kind)

    def _config(self) -> SimpleNamespace:
        """The metadata under the names that a Hugging Face config uses."""
        heads = self._own("attention.head_count")
        kv_heads = self._own("attention.head_count_kv", heads)
        if not isinstance(heads, int) or not isinstance(kv_heads, int):
            raise ModelError("Head counts that differ per layer are not supported in GGUF files.")
        hidden, window = self._own("embedding_length"), self._own("attention.sliding_window", None)
        embedding = self._stored.get("token_embd.weight")
        if embedding is None:
            raise ModelError("The GGUF file holds no token_embd.weight: it is not a whole model.")
        return SimpleNamespace(
            architectures=[ARCHITECTURES[self._kind]],
            hidden_size=hidden,
            intermediate_size=self._own("feed_forward_length"),
            num_hidden_layers=self._own("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=self._own("attention.key_length", hidden // heads),
            max_position_embeddings=self._own("context_length"),
            rms_norm_eps=self._own("attention.layer_norm_rms_epsilon"),
            vocab_size=int(embedding.shape[1]),
            rope_parameters=self._rope(),
            tie_word_embeddings="output.weight" not in self._stored,
            attention_bias="blk.0.attn_q.bias" in self._stored,
            sliding_window=window,
            layer_types=["sliding_attention" if window else "full_attention"]
            * self._own("block_count"),
            use_sliding_window=window is not None,
        )

    def _rope(self) -> SimpleNamespace:
        """Rotary settings. Llama 3's scaling is not metadata but a tensor of factors."""
        base = self._own("rope.freq_base", 10_000.0)
        if _ROPE_FACTORS in self._stored:
            factors = _dequantise(self._stored[_ROPE_FACTORS]).tolist()
            return SimpleNamespace(rope_type="factors", rope_theta=base, factors=factors)
        kind = self._own("rope.scaling.type", "none")
        if kind == "none":
            return SimpleNamespace(rope_type="default", rope_theta=base)
        rope = SimpleNamespace(
            rope_type=kind, rope_theta=base, factor=self._own("rope.scaling.factor", 1.0)
        )
        if kind == "yarn":
            rope.original_max_position_embeddings = self._own(
                "rope.scaling.original_context_length"
            )
        return rope

    def _own(self, key: str, *default: Any) -> Any:
        """A field of this architecture; without a default it must be there."""
        value = self._field(f"{self._kind}.{key}", *default)
        if value is None and not default:
            raise ModelError(f"The GGUF file lacks {self._kind}.{key}.")
        return value

    def _field(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()


def _gguf_architecture(kind: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)


def _dequantise(tensor: gguf.ReaderTensor) -> npt.NDArray[np.float32]:
    """The values of a tensor as float32, in its Hugging Face shape."""
    try:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ModelError(
            f"Tensor {tensor.name} has GGUF type {tensor.tensor_type.name}, which cannot be read. "
            "Requantise the file, for example to Q8_0 or Q4_K."
        ) from error
    return np.asarray(values, np.float32)


def _unpermute(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Back from interleaved to half-split rotary rows: the inverse of llama.cpp's `permute`."""
    split = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)
