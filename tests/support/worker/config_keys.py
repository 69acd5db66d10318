"""Which keys of its config a model of transformers reads, and its logits with another value.

A key counts if the model reads it, its weights keep their shapes without it, and its logits change:
then whoever loads the checkpoint must follow it, or refuse it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.initialization import no_init_weights

from tests.oracles.checkpoints import asked

_OTHERS: dict[str, Any] = {
    "hidden_act": "relu",
    "activation_function": "relu",
    "hidden_activation": "relu",
    "activation": "relu",
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
    "clip_qkv": 0.5,
    "sliding_window": 9,
}
"""Another value of keys that are names, or none at all."""
_STRUCTURE = frozenset(
    {"vocab_size", "hidden_size", "num_hidden_layers", "n_layer", "num_layers"}
    | {"tie_word_embeddings", "output_attentions", "output_hidden_states", "output_router_logits"}
    | {"return_dict", "is_encoder_decoder", "attention_dropout", "router_aux_loss_coef"}
)
"""Keys that every model follows by the shapes, the number or the absence of its tensors, those that
say what else than logits the reference returns, and those of training and of encoders."""
_LEAST = 1e-3
"""Change of the logits that counts."""


@dataclass(frozen=True)
class Change:
    """A key with another value, and the logits with it."""

    key: str
    value: Any
    logits: torch.Tensor


@contextmanager
def _recorded(config: Any) -> Iterator[set[str]]:
    """Record the keys that are read of a config."""
    read, kind = set[str](), type(config)
    own = kind.__getattribute__

    def spy(self: Any, name: str) -> Any:
        if self is config:
            read.add(name)
        return own(self, name)

    kind.__getattribute__ = spy
    try:
        yield read
    finally:
        kind.__getattribute__ = own


def keys_read(model: Any, tokens: list[int]) -> set[str]:
    """The keys of its config file that a model reads when it is built and run."""
    config = copy.deepcopy(model.config)
    with _recorded(config) as read:
        asked(_with_weights_of(model, config))(tokens)
    return read & config.to_dict().keys()


def _with_weights_of(model: Any, config: Any) -> Any:
    """A model of another config with the same weights; no random ones are drawn first.

    Raises whatever transformers raises where there is no such model, or its shapes are others.
    """
    config.dtype = model.dtype  # saving it has left a name, which xIELU does not take
    with no_init_weights(), torch.random.fork_rng():
        made = type(model)(config).eval()
    made.load_state_dict(model.state_dict())
    return made


def other_values(key: str, value: Any) -> list[Any]:
    """Other values of a key; of an object, with one of its members changed each."""
    if key in _STRUCTURE:
        return []
    if isinstance(value, dict):
        return [value | {k: v} for k in value for v in other_values(k, value[k])]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value or 1]
    if isinstance(value, float):
        return [1.5 * value + 0.25]
    return [_OTHERS[key]] if value != _OTHERS.get(key, value) else []


def changes(model: Any, tokens: list[int]) -> Iterator[Change]:
    """The keys that count, each with another value."""
    before = asked(model)(tokens)
    for key, value in _candidates(model, tokens):
        try:
            config = type(model.config).from_dict(model.config.to_dict() | {key: value})
            logits = asked(_with_weights_of(model, config))(tokens)
        except Exception:  # such a model cannot be: its shapes or its code say so
            continue
        if not torch.isfinite(logits).all() or (logits - before).abs().max() < _LEAST:
            continue
        yield Change(key, value, logits)


def _candidates(model: Any, tokens: list[int]) -> Iterator[tuple[str, Any]]:
    for key in sorted(keys_read(model, tokens)):
        for value in other_values(key, getattr(model.config, key, None)):
            yield key, value


def rewrite(folder: Path, change: Change) -> None:
    """Change the key in the checkpoint's config file."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {change.key: change.value}))
