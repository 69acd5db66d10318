"""Rows of the table of GGUF architectures, and readers shared by several of them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol


class Metadata(Protocol):
    """Architecture metadata of a file."""

    def own(self, key: str, *default: Any) -> Any:
        """A field; required unless a default is given."""
        ...

    def listed(self, key: str) -> list[float]:
        """A required list outside the fields of the architecture."""
        ...

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor."""
        ...

    def rows(self, part: str) -> int:
        """Row count of the first existing layer tensor of this name ("ffn_up"), or of one outside
        the layers; 0 if there is none."""
        ...

    def rope(self) -> SimpleNamespace:
        """The rotary settings under their Hugging Face names."""
        ...


Fields = dict[str, Any]
ABSENT = object()
"""Removes a common field from the config."""


def nothing(file: Metadata) -> Fields:
    """No additional fields."""
    return {}


class Family(NamedTuple):
    """One architecture."""

    name: str
    """Its Hugging Face name."""
    fields: Callable[[Metadata], Fields] = nothing
    """Config fields beyond the common ones."""
    permuted: bool = False
    """Rows of query and key are interleaved."""
    norms_plus_one: bool = False
    """Norms are stored as the factor 1 + w."""
    per_layer: bool = False
    """Head counts and sizes may differ by layer."""
    tiled: bool = False
    """Value heads of delta nets are ordered by their number within a key head."""
    scaled_routers: bool = False
    """Scales of routers and of experts' down-projections are vectors of the model."""
    names_of: str | None = None
    """The architecture whose tensor names it has, if the `gguf` package does not know its own."""


def layer_norm(file: Metadata) -> Fields:
    """The epsilon of LayerNorms under all of its config names."""
    eps = file.own("attention.layer_norm_epsilon")
    names = ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
    return dict.fromkeys(names, eps)


def head_size(file: Metadata) -> int:
    """Channels per query head."""
    heads = max(each(file.own("attention.head_count"), 1))
    size: int = file.own("attention.key_length", file.own("embedding_length") // max(1, heads))
    return size


def partial(file: Metadata) -> Fields:
    """Rotate only the first channels of a head."""
    size = head_size(file)
    return {"partial_rotary_factor": file.own("rope.dimension_count", size) / size}


def layer_kinds(file: Metadata) -> list[str] | None:
    """Layer types if the file lists windowed layers; else the architecture's default."""
    pattern = file.own("attention.sliding_window_pattern", None)
    if not isinstance(pattern, list):
        return None
    return ["sliding_attention" if local else "full_attention" for local in pattern]


def each(value: Any, count: int) -> list[Any]:
    """Expand one value for all layers to a list."""
    return value if isinstance(value, list) else [value] * count


def ropes(file: Metadata) -> SimpleNamespace:
    """The ropes of layers without windows and of those with one, which is never scaled."""
    full, size = file.rope(), head_size(file)
    if (factor := file.own("rope.scaling.yarn_attn_factor", None)) is not None:
        full.attention_factor = factor
    base = file.own("rope.freq_base_swa", full.rope_theta)
    local = SimpleNamespace(rope_type="default", rope_theta=base)
    for rope, key in ((full, "rope.dimension_count"), (local, "rope.dimension_count_swa")):
        rope.partial_rotary_factor = file.own(key, size) / size
    return SimpleNamespace(full_attention=full, sliding_attention=local)
