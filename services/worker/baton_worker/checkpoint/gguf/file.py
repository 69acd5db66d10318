"""GGUF files: metadata to a config, tensor names to Hugging Face names, blocks to floats.

Inverts the steps of llama.cpp's `convert_hf_to_gguf.py`, following the GGUF specification.
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

from baton.checkpoint.gguf_header import TensorEntry, read_head, split_parts
from baton.errors import ModelError
from baton_worker.checkpoint.gguf.blocks import BLOCK_TYPES
from baton_worker.checkpoint.gguf.data import GgufData, Order, unpermuted, untiled
from baton_worker.checkpoint.gguf.families import FAMILIES, REFUSED
from baton_worker.checkpoint.gguf.metadata import ABSENT, each, head_size
from baton_worker.checkpoint.gguf.recurrent_pieces import Piece, Place
from baton_worker.checkpoint.gguf.roles import Roles, place, wanted
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.spec import Decoder
from baton_worker.spec.config_limits import check_sizes
from baton_worker.spec.hf_config import as_ids

_ROPE_FACTORS = "rope_freqs.weight"
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_NO_MODELS = {
    "adapter": "an adapter without its model. Serve the model, with the adapter's PEFT folder in "
    "--lora-modules",
    "imatrix": "statistics for a quantiser and no model",
}
"""Values of `general.type` of files that are used beside a model."""
_READ_FIRST = (_ROPE_FACTORS, _LONG_FACTORS, _SHORT_FACTORS)
_SCALES = ("scale", "input_scale")
"""Of NVFP4: factors on whole weights, and on inputs, which are not quantised here."""
_KEYS_UP, _VALUES_UP = "attn_k_b", "attn_v_b"
_CONVS = {"ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v", "shortconv.conv"}
_RECURRENT = _CONVS | {"ssm_a", "ssm_d", "ssm_dt", "ssm_norm"}
"""Tensors of recurrent layers of which files hold only floats, except for the matrix `ssm_dt`."""


_BARE_NORMS = (
    *(".ffn_norm", ".post_attention_norm", ".post_ffw_norm"),
    *(".ssm_dt_norm", ".ssm_b_norm", ".ssm_c_norm"),
)
_VECTORS = {"exp_probs_b"}
"""Vectors that some files hold as matrices of one row."""


class GgufFile:
    """One GGUF file, memory-mapped; tensors are read one at a time."""

    def __init__(self, path: Path) -> None:
        metadata, tensors = read_head(path)
        # Vocabularies are megabytes of strings, and the tokenizer service reads them itself.
        self._metadata = {
            key: field
            for key, field in metadata.items()
            if not (key.startswith("tokenizer.") and isinstance(field, list))
        }
        self._parts = [GgufData(part) for part in split_parts(path)]
        named = (tensor._replace(name=_whole(tensor.name)) for tensor in tensors)
        self._stored = {tensor.name: tensor for tensor in named}
        self._kind = self._architecture()
        mixed = f"{self._kind} with experts"
        has_experts = self.own("expert_count", 0) and mixed in FAMILIES
        self._family = FAMILIES[mixed if has_experts else self._kind]
        self.config = self._config()
        self.eos_token_ids = tuple(
            dict.fromkeys(
                token
                for key in ("eos_token_id", "eot_token_id")
                for token in as_ids(self._field(f"tokenizer.ggml.{key}"))
            )
        )

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor | BlockQuantized | Rows]]:
        """Every tensor under its Hugging Face name, in its Hugging Face layout: as blocks if
        kernels support the block type, else as float32. Matrices are read lazily by rows."""
        roles = Roles(spec, self._known(spec))
        for stored, tensor in self._stored.items():
            at = place(stored)
            if self._family.scaled_routers and at.suffix == "scale":
                yield roles.router_vector(at), self._router_vector(tensor)
                continue
            if stored in _READ_FIRST or at.suffix in _SCALES or self._is_draft(at):
                continue
            if names := roles.stacked(at):
                yield from self._unstacked(tensor, names)
            elif at.part == _KEYS_UP:
                yield roles.of("kv_up", at), self._keys_and_values_up(tensor)
            elif at.part in _RECURRENT and at[1:] != ("ssm_dt", "weight"):
                yield from self._recurrent(tensor, roles)
            elif at.part != _VALUES_UP:
                yield from self._pieces(tensor, roles)
            self._data(tensor).release()

    def _data(self, tensor: TensorEntry) -> GgufData:
        return self._parts[tensor.part]

    def _floats(self, stored: str) -> npt.NDArray[np.float32]:
        tensor = self._stored[stored]
        return self._data(tensor).floats(tensor)

    def _is_draft(self, at: Place) -> bool:
        """Whether this is a multi-token prediction layer, unread without a draft model."""
        return at.layer is not None and at.layer >= self.config.num_hidden_layers

    def _pieces(
        self, tensor: TensorEntry, roles: Roles
    ) -> Iterator[tuple[str, Tensor | BlockQuantized | Rows]]:
        first = 0
        for piece in roles.pieces(tensor.name, tensor.shape):
            count = tensor.shape[0] if piece.rows is None else piece.rows
            part = self._data(tensor).part(tensor, first, count)
            yield piece.name, self._read(part, self._order(piece, count))
            first += count
        if first != tensor.shape[0]:
            raise ModelError(
                f"Tensor {tensor.name} has {tensor.shape[0]} rows in the GGUF file, "
                f"but its metadata asks for {first}."
            )

    def _recurrent(self, tensor: TensorEntry, roles: Roles) -> Iterator[tuple[str, Tensor]]:
        """A tensor of a recurrent layer with the axes and values that it has in Hugging Face
        checkpoints: rates as logarithms, convolutions with an axis of groups."""
        at, values = place(tensor.name), _writable(self._data(tensor).floats(tensor))
        if at.part in _CONVS and at.suffix == "weight":
            values = values.reshape(-1, 1, values.shape[-1])
        elif at.part == "ssm_norm" or values.shape[-1] == 1:
            values = values.flatten()
        if at.part == "ssm_a":
            values = (-values).log()
            if self.has(f"blk.{at.layer}.ssm_f_a.weight"):
                values = values.view(1, 1, -1, 1)  # as the checkpoints of Kimi Linear have it
        first = 0
        for piece in roles.pieces(tensor.name, tuple(values.shape)):
            some = values[first : first + (piece.rows or len(values))]
            order = self._order(piece, len(some))
            yield piece.name, some if order is None else some[torch.from_numpy(order)]
            first += len(some)

    def _order(self, piece: Piece, count: int) -> Order:
        """The order of stored rows in Hugging Face checkpoints."""
        if piece.heads is not None and self._family.permuted:
            return unpermuted(count, piece.heads)
        if piece.tiles is not None and self._family.tiled:
            return untiled(count, piece.tiles)
        return None

    def _unstacked(
        self, tensor: TensorEntry, names: list[str]
    ) -> Iterator[tuple[str, Tensor | BlockQuantized | Rows]]:
        """The matrices or vectors of a tensor [E, rows, columns] or [E, rows], one by one; each has
        an equal number of rows under every name."""
        data, rows = self._data(tensor), tensor.shape[1] // len(names)
        for expert in range(tensor.shape[0]):
            whole = data.part(tensor, expert, 1)._replace(shape=tensor.shape[1:])
            for number, name in enumerate(names):
                part = data.part(whole, number * rows, rows)
                yield name.format(expert=expert), self._read(part, None, expert)

    def _keys_and_values_up(self, keys: TensorEntry) -> Tensor:
        """The up-projection from latents to each head's K and V, stored by newer files in two
        tensors: keys [H, rank, nope], values [H, v, rank]."""
        values = self._stored[keys.name.replace(_KEYS_UP, _VALUES_UP)]
        both = (
            _writable(self._data(keys).floats(keys)),
            _writable(self._data(values).floats(values)),
        )
        return torch.cat([both[0].transpose(1, 2), both[1]], dim=1).flatten(0, 1)

    def _read(
        self, tensor: TensorEntry, order: Order, expert: int = 0
    ) -> Tensor | BlockQuantized | Rows:
        factor = self._factor(tensor, expert)
        if len(tensor.shape) == 2 and tensor.kind in BLOCK_TYPES:
            return self._data(tensor).blocks(tensor, order, factor)
        return self._values(tensor, order)

    def _factor(self, tensor: TensorEntry, expert: int) -> float:
        """What a weight, or this expert of a stack, is multiplied by."""
        scale = f"{tensor.name.removesuffix('.weight')}.scale"
        is_nvfp4 = tensor.kind == gguf.GGMLQuantizationType.NVFP4
        if scale not in self._stored or (self._family.scaled_routers and not is_nvfp4):
            return 1.0
        if not is_nvfp4:
            raise ModelError(
                f"Tensor {tensor.name} has a factor beside it ({scale}) and is not in NVFP4: the "
                "file was quantised twice. Quantise the original model."
            )
        return float(self._floats(scale).flat[expert])

    def _router_vector(self, tensor: TensorEntry) -> Tensor:
        """A scale of `scaled_routers`; ones where it is a factor of NVFP4 weights already."""
        values = _writable(self._floats(tensor.name)).flatten()
        weight = self._stored[f"{tensor.name.removesuffix('.scale')}.weight"]
        is_factor = weight.kind == gguf.GGMLQuantizationType.NVFP4
        return torch.ones_like(values) if is_factor else values

    def _values(self, tensor: TensorEntry, order: Order) -> Tensor | Rows:
        """A tensor as floats."""
        plus_one = self._family.norms_plus_one and tensor.name.endswith("norm.weight")
        vector = plus_one or place(tensor.name).part in _VECTORS
        if len(tensor.shape) == 2 and not vector:
            return self._data(tensor).rows(tensor, order)
        values = self._data(tensor).floats(tensor)
        if vector:
            values = values.reshape(-1)
        if order is not None:
            values = values[order]
        return _writable(values - 1 if plus_one else values)

    def _known(self, spec: Decoder) -> dict[str, str]:
        """GGUF module name to Hugging Face module name, for every role of every layer."""
        kind = self._family.names_of or self._kind
        table = gguf.get_tensor_name_map(_gguf_architecture(kind), len(spec.layers))
        ours = (name for layer in range(len(spec.layers)) for name in wanted(spec, layer))
        return {stored: name for name in ours if (stored := table.get_name(name)) is not None}

    def _architecture(self) -> str:
        kind = str(self._field("general.architecture"))
        if kind in REFUSED:
            raise ModelError(f"GGUF architecture '{kind}' {REFUSED[kind]}.")
        if (contents := self._field("general.type", "model")) in _NO_MODELS:
            raise ModelError(
                f"The GGUF file has the type '{contents}': it holds {_NO_MODELS[contents]}."
            )
        if kind not in FAMILIES:
            known = ", ".join(name for name in FAMILIES if " " not in name)
            raise ModelError(
                f"GGUF architecture '{kind}' is not supported. Known: {known}. "
                "To add it, write its row in baton_worker/checkpoint/gguf/families.py and, if its "
                "spec is missing, baton_worker/models/families/."
            )
        return kind

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor."""
        return tensor in self._stored

    def rows(self, part: str) -> int:
        """See `metadata.Metadata`."""
        shapes = [tensor.shape for name, tensor in self._stored.items() if place(name).part == part]
        return shapes[0][0] if shapes else 0

    def _heads(self) -> tuple[Any, Any]:
        """Numbers of query and KV heads, possibly per layer."""
        heads = self.own("attention.head_count")
        kv_heads = self.own("attention.head_count_kv", heads)
        differ = isinstance(heads, list) or isinstance(kv_heads, list)
        if differ and not self._family.per_layer:
            raise ModelError(
                "Head counts that differ per layer are not supported in GGUF files of "
                f"{self._kind}."
            )
        return max(each(heads, 1)), kv_heads

    def _config(self) -> SimpleNamespace:
        """The metadata under Hugging Face config names."""
        fields = self._common_fields() | self._family.fields(self)
        present = {key: field for key, field in fields.items() if field is not ABSENT}
        config = SimpleNamespace(**present)
        check_sizes(config, "GGUF metadata")
        return config

    def _common_fields(self) -> dict[str, Any]:
        """What the config of any family has, before the family's own fields replace some."""
        heads, kv_heads = self._heads()
        hidden, window = self.own("embedding_length"), self.own("attention.sliding_window", None)
        layers = self.own("block_count") - self.own("nextn_predict_layers", 0)
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        check_sizes(SimpleNamespace(**sizes), "GGUF metadata")
        embedding = self._stored.get("token_embd.weight")
        if embedding is None:
            raise ModelError("The GGUF file holds no token_embd.weight: it is not a whole model.")
        return dict(
            architectures=[self._family.name],
            hidden_size=hidden,
            intermediate_size=self.own("feed_forward_length", 0),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=self.own("attention.key_length", hidden // max(1, heads)),
            max_position_embeddings=self.own("context_length"),
            rms_norm_eps=self.own("attention.layer_norm_rms_epsilon", 1e-5),
            vocab_size=embedding.shape[0],
            rope_parameters=self.rope(),
            tie_word_embeddings="output.weight" not in self._stored,
            attention_bias=self.has("blk.0.attn_q.bias") or self.has("blk.0.attn_qkv.bias"),
            attention_out_bias=self.has("blk.0.attn_output.bias"),
            mlp_bias=self.has("blk.0.ffn_up.bias"),
            sliding_window=window,
            layer_types=["sliding_attention" if window else "full_attention"] * layers,
            use_sliding_window=window is not None,
            linear_output_tiled=self._family.tiled,
        )

    def rope(self) -> SimpleNamespace:
        """Rotary settings. Llama 3's scaling is stored as a tensor of factors, not as metadata."""
        base = self.own("rope.freq_base", 10_000.0)
        if alpha := self.own("rope.scaling.alpha", 0.0):
            size = head_size(self)
            base *= alpha ** (size / (size - 2))
        if _ROPE_FACTORS in self._stored:
            factors = self._floats(_ROPE_FACTORS).tolist()
            return SimpleNamespace(rope_type="factors", rope_theta=base, factors=factors)
        if _LONG_FACTORS in self._stored:
            return self._long_rope(base)
        # Older files have one key, and no type.
        factor = self.own("rope.scaling.factor", self.own("rope.scale_linear", 0.0)) or 1.0
        kind = self.own("rope.scaling.type", "linear")
        if kind == "none" or (kind == "linear" and factor == 1.0):
            return SimpleNamespace(rope_type="default", rope_theta=base)
        rope = SimpleNamespace(rope_type=kind, rope_theta=base, factor=factor)
        if kind == "yarn":
            rope.original_max_position_embeddings = self.own(
                "rope.scaling.original_context_length", self.own("context_length")
            )
            rope.beta_fast = self.own("rope.scaling.yarn_beta_fast", 32.0)
            rope.beta_slow = self.own("rope.scaling.yarn_beta_slow", 1.0)
        return rope

    def _long_rope(self, base: float) -> SimpleNamespace:
        """LongRoPE has a tensor of factors for short and one for long sequences."""
        long, short = (self._floats(name).tolist() for name in (_LONG_FACTORS, _SHORT_FACTORS))
        return SimpleNamespace(
            rope_type="longrope",
            rope_theta=base,
            long_factor=long,
            short_factor=short,
            attention_factor=self.own("rope.scaling.attn_factor", None),
            original_max_position_embeddings=self.own(
                "rope.scaling.original_context_length", self.own("context_length")
            ),
        )

    def own(self, key: str, *default: Any) -> Any:
        """A field of this architecture; required unless a default is given."""
        value = self._field(f"{self._kind}.{key}", *default)
        if value is None and not default:
            raise ModelError(f"The GGUF file lacks {self._kind}.{key}.")
        return value

    def listed(self, key: str) -> list[float]:
        """See `metadata.Metadata`."""
        value = self._field(key)
        if not isinstance(value, list):
            raise ModelError(f"The GGUF file lacks the list {key}: convert the model again.")
        return value

    def _field(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(key, default)


def _whole(stored: str) -> str:
    """The name of a tensor; norms of Falcon-H1's feed-forwards, and those behind the halves and
    within the state spaces of PLaMo 2 and 3, lack the suffix."""
    return f"{stored}.weight" if stored.endswith(_BARE_NORMS) else stored


def _gguf_architecture(kind: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)


def _writable(values: npt.NDArray[np.float32]) -> Tensor:
    """A copy if the values are a view of the file."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))
