"""Expert feed-forwards over routed tokens: the plain form, and three that group tokens by expert.

A package adds its own through the entry-point group `baton.experts`: an `experts.ExpertKernel`.
"""

from __future__ import annotations

from baton.registry import Registry

KERNELS = Registry(
    "experts",
    {
        "triton": "baton_worker.kernels.moe.triton:TritonExperts",
        "padded": "baton_worker.kernels.moe.padded:PaddedExperts",
        "grouped": "baton_worker.kernels.moe.grouped:GroupedExperts",
        "loop": "baton_worker.kernels.moe.loop:LoopExperts",
    },
)
