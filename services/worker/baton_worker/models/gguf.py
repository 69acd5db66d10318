"""GGUF files: metadata to a config, tensor names to Hugging Face names, blocks to floats.

Follows the GGUF specification and `convert_hf_to_gguf.py` of llama.cpp, whose steps are undone.
"""

from __future__ import annotations

import math
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
from baton.gguf import TensorEntry, read_head
from baton_worker.kernels.quantized import Blocks
from baton_worker.models.config import as_ids
from baton_worker.models.gguf_blocks import BLOCK_TYPES, open_blocks
from baton_worker.models.names import Names
from baton_worker.models.spec import Decoder

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",  # Mistral is written as llama too
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_ROPE_FACTORS = "rope_freqs.weight"
_FLOATS = {
    gguf.GGMLQuantizationType.F32: np.float32,
    gguf.GGMLQuantizationType.F16: np.float16,
    gguf.GGMLQuantizationType.F64: np.float64,
}
"""Types that are not stored in blocks."""


class GgufFile:
    """One GGUF file, memory-mapped; tensors are read one at a time."""

    def __init__(self, path: Path) -> None:
        self._metadata, tensors = read_head(path)
        self._data = np.memmap(path, np.uint8, mode="r")
        self._stored = {tensor.name: tensor for tensor in tensors}
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

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor | Blocks]]:
        """Every tensor under its Hugging Face name, in its Hugging Face layout: as blocks where
        it is stored in blocks that kernels know, else as float32."""
        names = self._names(spec)
        for stored, tensor in self._stored.items():
            if stored == _ROPE_FACTORS:
                continue
            module, _, suffix = stored.rpartition(".")
            name = f"{names[module]}.{suffix}" if module in names else stored
            yield name, self._read(stored, tensor)

    def _read(self, stored: str, tensor: TensorEntry) -> Tensor | Blocks:
        heads = None
        if self._kind == "llama" and ".attn_q." in stored:
            heads = self.config.num_attention_heads
        elif self._kind == "llama" and ".attn_k." in stored:
            heads = self.config.num_key_value_heads
        if len(tensor.shape) == 2 and tensor.kind in BLOCK_TYPES:
            rows = self._blocks(tensor, gguf.GGMLQuantizationType(tensor.kind))
            rows = rows.copy() if heads is None else _unpermute(rows, heads)
            return open_blocks(tensor.kind, rows.view(np.uint8))
        values = self._dequantise(tensor)
        if heads is not None:
            values = _unpermute(values, heads)
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))

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
            vocab_size=embedding.shape[0],
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
            factors = self._dequantise(self._stored[_ROPE_FACTORS]).tolist()
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
        return self._metadata.get(key, default)

    def _dequantise(self, tensor: TensorEntry) -> npt.NDArray[np.float32]:
        """The values of a tensor as float32, in its Hugging Face shape."""
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            values = gguf.quants.dequantize(self._blocks(tensor, kind), kind)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(
                f"Tensor {tensor.name} has GGUF type {_type_name(tensor.kind)}, which cannot be "
                "read. Requantise the file, for example to Q8_0 or Q4_K."
            ) from error
        return np.asarray(values, np.float32)

    def _blocks(
        self, tensor: TensorEntry, kind: gguf.GGMLQuantizationType
    ) -> npt.NDArray[np.generic]:
        """The bytes of a tensor as `gguf.quants` takes them: floats, or uint8 blocks by row."""
        shape = gguf.quant_shape_to_byte_shape(tensor.shape, kind)
        end = tensor.offset + math.prod(shape)
        if end > len(self._data):
            raise ModelError(f"The GGUF file ends before tensor {tensor.name}: fetch it again.")
        blocks = self._data[tensor.offset : end].reshape(shape)
        return blocks.view(_FLOATS[kind]) if kind in _FLOATS else blocks


def _gguf_architecture(kind: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)


def _type_name(kind: int) -> str:
    known = {member.value: member.name for member in gguf.GGMLQuantizationType}
    return str(known.get(kind, f"number {kind}"))


def _unpermute(rows: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Back from interleaved to half-split rotary rows: the inverse of llama.cpp's `permute`."""
    split = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)
