"""A folder in Mistral's own format: params.json and consolidated.safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from baton.errors import ModelError
from baton.logs import logger
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder, indexed
from baton_worker.spec import Decoder

log = logger(__name__)
_MODULES = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wq_a": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj",
    "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.wkv_b": "self_attn.kv_b_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate",
}
"""Modules of a layer by their names in the format of transformers."""
_OUTSIDE = {
    "norm": "model.norm",
    "tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
    "eagle_linear": "model.fc",
}
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_PARAMETERS = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_GATED = re.compile(r"(feed_forward|shared_experts|experts\.\d+)\.(w[123])")
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_OF_IMAGES = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_")


class MistralFolder(SafetensorsFolder):
    """See `SafetensorsFolder`. What encodes images is left out."""

    @staticmethod
    def fits(folder: Path) -> bool:
        """Whether the folder has this format alone."""
        return (folder / "params.json").is_file() and not (folder / "config.json").is_file()

    def _stored(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        unread = 0
        for name, tensor in super()._stored(spec):
            if name.startswith(_OF_IMAGES):
                unread += 1
            else:
                yield transformers_name(name), tensor
        if unread:
            log.warning("%d tensors that encode images are not read: only text is served", unread)

    def _shards(self) -> list[Path]:
        index = self._folder / "consolidated.safetensors.index.json"
        if index.is_file():
            return indexed(index)
        files = sorted(self._folder.glob("consolidated*.safetensors"))
        if not files:
            raise ModelError(f"{self._folder} holds no consolidated.safetensors.")
        return files


def transformers_name(name: str) -> str:
    """The name of a tensor in the format of transformers. Raises `ModelError` if it has none."""
    module, _, parameter = name.rpartition(".")
    parameter = _PARAMETERS.get(parameter, parameter)
    if (inside := _LAYER.fullmatch(module)) is None:
        renamed = _OUTSIDE.get(module)
    else:
        renamed = _in_layer(inside[2])
        renamed = renamed and f"model.layers.{inside[1]}.{renamed}"
    if renamed is None:
        raise ModelError(f"The tensor {name} of this checkpoint is unknown.")
    return f"{renamed}.{parameter}"


def _in_layer(module: str) -> str | None:
    if (gated := _GATED.fullmatch(module)) is None:
        return _MODULES.get(module)
    part = _PARTS[gated[2]]
    return f"mlp.{part}" if gated[1] == "feed_forward" else f"mlp.{gated[1]}.{part}"
