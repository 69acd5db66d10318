"""How a checkpoint calls its tensors: roles to Hugging Face module names."""

from __future__ import annotations

from collections.abc import Iterable

DEFAULT = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "mixer_norm": "model.layers.{layer}.input_layernorm",
    "ffn_norm": "model.layers.{layer}.post_attention_layernorm",
    "query": "model.layers.{layer}.self_attn.q_proj",
    "key": "model.layers.{layer}.self_attn.k_proj",
    "value": "model.layers.{layer}.self_attn.v_proj",
    "output": "model.layers.{layer}.self_attn.o_proj",
    "query_norm": "model.layers.{layer}.self_attn.q_norm",
    "key_norm": "model.layers.{layer}.self_attn.k_norm",
    "gate": "model.layers.{layer}.mlp.gate_proj",
    "up": "model.layers.{layer}.mlp.up_proj",
    "down": "model.layers.{layer}.mlp.down_proj",
}

# Buffers that older checkpoints saved although every reader recomputes them.
_RECOMPUTED = (".rotary_emb.inv_freq", ".self_attn.bias", ".self_attn.masked_bias")


class Names:
    """Role to module name, for one layer or (layer None) for the parts outside the stack."""

    def __init__(self, changes: Iterable[tuple[str, str]] = (), layer: int | None = None) -> None:
        self._table = DEFAULT | dict(changes)
        self._layer = layer

    def at(self, layer: int) -> Names:
        """The names of layer number `layer`."""
        return Names(self._table.items(), layer)

    def __call__(self, role: str) -> str:
        """The module name of `role`; append `.weight` or `.bias` for the tensor."""
        return self._table[role].format(layer=self._layer)

    def every(self, num_layers: int) -> list[str]:
        """Each module name of a model with this many layers, once."""
        layers = [self.at(layer) for layer in range(num_layers)]
        return list(dict.fromkeys(names(role) for names in layers for role in self._table))


def is_recomputed(tensor: str) -> bool:
    """Whether a tensor may be left unread because it follows from the configuration."""
    return tensor.endswith(_RECOMPUTED)
