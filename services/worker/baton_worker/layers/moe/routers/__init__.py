"""Functions that choose the experts of a token.

A package adds its own through the entry-point group `baton.routers`: a `base.Choose`.
"""

from __future__ import annotations

from baton.registry import Registry

ROUTERS = Registry(
    "routers",
    {
        "top_k": "baton_worker.layers.moe.routers.top_k:top_k",
        "each_group": "baton_worker.layers.moe.routers.group_top_k:each_group",
        "sparse_mixer": "baton_worker.layers.moe.routers.sparse_mixer:sparse_mixer",
        "expert_choice": "baton_worker.layers.moe.routers.expert_choice:expert_choice",
        "balanced": "baton_worker.layers.moe.routers.simulated:balanced",
        "skewed": "baton_worker.layers.moe.routers.simulated:skewed",
    },
)
