"""Helpers of mixture-of-experts families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from baton_worker.models.families.common import (
    Config,
    glu,
    named,
)
from baton_worker.spec import (
    Ffn,
    Glu,
    Moe,
    Router,
    Stacked,
)

LAYER = "model.layers.{layer}"


EXPERT_GATE_UP = ("expert_gate", "expert_up")


SHARED = ("shared_gate", "shared_up", "shared_down")


NORM_EPS = 1e-5


def first(c: Config, *names: str, default: Any = None) -> Any:
    """The first of these fields that is present and not null."""
    return next((v for v in (getattr(c, name, None) for name in names) if v is not None), default)


def of_layer(value: Any, layer: int) -> Any:
    """A field that is either one value or a list with one per layer."""
    return value[layer] if isinstance(value, list) else value


def experts(c: Config) -> int:
    """Number of experts; its field name differs by family."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    count: int | None = first(c, *names)
    if count is None:
        raise AttributeError("num_experts")
    return count


def router(c: Config, **changes: Any) -> Router:
    """Softmax top-k over the experts of the config."""
    top_k = first(c, "num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k")
    values: dict[str, Any] = {"num_experts": experts(c), "top_k": top_k}
    if getattr(c, "norm_topk_prob", False):
        values["norm"] = 1.0
    return Router(**values | changes)


def no_auxiliary_loss(c: Config, **changes: Any) -> Router:
    """DeepSeek-V3's router: sigmoid scores, bias-corrected selection, limited to the best
    groups."""
    values: dict[str, Any] = {
        "score": "sigmoid",
        "correction": True,
        "num_groups": getattr(c, "n_group", None) or 1,
        "top_groups": getattr(c, "topk_group", None) or 1,
        "group_width": 2,
        "norm": 1.0 if getattr(c, "norm_topk_prob", True) else None,
        "norm_floor": 1e-20,
        "scale": first(c, "routed_scaling_factor", default=1.0),
    }
    return router(c, **values | changes)


def small(c: Config, size: int | None = None) -> Glu:
    """The feed-forward of one expert."""
    return replace(glu(c), intermediate=size or c.moe_intermediate_size)


def sparse_where(layers: Sequence[bool], sparse: Ffn, dense: Ffn) -> list[Ffn]:
    """One feed-forward per layer."""
    return [sparse if chosen else dense for chosen in layers]


def after_dense(c: Config, moe: Moe, first_dense: int = 0) -> list[Ffn]:
    """Dense first layers, then experts; `mlp_layer_types` gives it per layer."""
    kinds = getattr(c, "mlp_layer_types", None)
    dense = first(c, "first_k_dense_replace", default=first_dense)
    layers = [
        kinds[layer] == "sparse" if kinds else layer >= dense
        for layer in range(c.num_hidden_layers)
    ]
    return sparse_where(layers, moe, glu(c))


def stacked(source: str) -> tuple[Stacked, ...]:
    """Experts as two tensors, fused gate-up and down: transformers 5's layout."""
    return (
        Stacked(f"{source}.gate_up_proj", EXPERT_GATE_UP),
        Stacked(f"{source}.down_proj", ("expert_down",)),
    )


FUSED = stacked(f"{LAYER}.mlp.experts")


def shared_under(prefix: str) -> tuple[tuple[str, str], ...]:
    """The names of a shared expert: its three projections under one prefix."""
    return named(
        LAYER,
        shared_gate=f"{prefix}.gate_proj",
        shared_up=f"{prefix}.up_proj",
        shared_down=f"{prefix}.down_proj",
    )


def draft_layers(c: Config) -> tuple[str, ...]:
    """Multi-token prediction layers, unread without a draft model."""
    extra = first(c, "num_nextn_predict_layers", default=0)
    return tuple(f"model.layers.{c.num_hidden_layers + layer}." for layer in range(extra))
