"""What a row of the table of GGUF architectures is, and what several of them read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol


class Metadata(Protocol):
    """What a file says about its architecture."""

    def own(self, key: str, *default: Any) -> Any:
        """A field; without a default it must be there."""
        ...

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor."""
        ...

    def rows(self, part: str) -> int:
        """Rows of the first layer's tensor of this name that there is ("ffn_up"), or of one
        outside the layers; 0 where there is none."""
        ...

    def rope(self) -> SimpleNamespace:
        """The rotary settings under their Hugging Face names."""
        ...


Fields = dict[str, Any]
ABSENT = object()
"""In place of a field that the config is not to have, although most have it."""


def nothing(file: Metadata) -> Fields:
    """No field beside the common ones."""
    return {}


class Family(NamedTuple):
    """One architecture."""

    name: str
    """Its Hugging Face name."""
    fields: Callable[[Metadata], Fields] = nothing
    """What its config has beside the common fields."""
    permuted: bool = False
    """Rows of query and key are interleaved."""
    norms_plus_one: bool = False
    """Norms are stored as what multiplies, 1 + w."""
    per_layer: bool = False
    """Counts of heads and sizes may differ from layer to layer."""


def layer_norm(file: Metadata) -> Fields:
    """The epsilon of LayerNorms under every name that a config has for it."""
    eps = file.own("attention.layer_norm_epsilon")
    names = ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
    return dict.fromkeys(names, eps)


def head_size(file: Metadata) -> int:
    """Channels of a query head."""
    hidden, heads = file.own("embedding_length"), file.own("attention.head_count")
    size: int = file.own("attention.key_length", hidden // heads)
    return size


def partial(file: Metadata) -> Fields:
    """Only the first dimensions of a head rotate."""
    size = head_size(file)
    return {"partial_rotary_factor": file.own("rope.dimension_count", size) / size}


def layer_kinds(file: Metadata) -> list[str] | None:
    """Which layers see a window only, where the file lists it; else the architecture's default."""
    pattern = file.own("attention.sliding_window_pattern", None)
    if not isinstance(pattern, list):
        return None
    return ["sliding_attention" if local else "full_attention" for local in pattern]


def each(value: Any, count: int) -> list[Any]:
    """A field that is one value for all layers, or a list of them."""
    return value if isinstance(value, list) else [value] * count
