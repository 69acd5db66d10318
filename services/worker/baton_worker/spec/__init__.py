"""Model specs as pure data: a frozen tree that `models.build` turns into layers.

Nothing here imports torch, so a spec can be read, printed and compared anywhere. Every field is
used by at least two architectures; a one-off is a spec type (and a layer file) of its own.
"""

from baton_worker.spec.attention import (
    Attention,
    CausalAttention,
    ContextShard,
    DualChunkAttention,
    Indexer,
    KVSharingSource,
    KVSharingTarget,
    LatentAttention,
    LowRank,
    Mask,
    OutputGate,
    Projections,
    QkNorm,
    Scores,
    Sinks,
    SparseLatentAttention,
    Values,
)
from baton_worker.spec.checkpoint import Fused, Stacked, TensorLayout
from baton_worker.spec.decoder import Blend, Decoder, Ffn, Mixer, Skip
from baton_worker.spec.embedding import Embedding, Head, Positions
from baton_worker.spec.encoder import (
    AttentionPool,
    Dense,
    DualEncoder,
    Encoder,
    Padding,
    Patches,
    Vision,
)
from baton_worker.spec.ffn import Glu, MegablocksExperts, Mlp, Moe, Router, ShortcutMoe
from baton_worker.spec.norm import GatedNorm, Norm
from baton_worker.spec.rope import FourierRope, Parameter, Rope, Sections
from baton_worker.spec.state_space import (
    DeltaNet,
    LinearAttention,
    Mamba,
    Recurrent,
    RecurrentWithConv,
    ShortConv,
    StateSpace,
)
from baton_worker.spec.vision import VisionTower

__all__ = [
    "Attention",
    "AttentionPool",
    "Blend",
    "CausalAttention",
    "ContextShard",
    "Decoder",
    "DeltaNet",
    "Dense",
    "DualChunkAttention",
    "DualEncoder",
    "Embedding",
    "Encoder",
    "Ffn",
    "FourierRope",
    "Fused",
    "GatedNorm",
    "Glu",
    "Head",
    "Indexer",
    "KVSharingSource",
    "KVSharingTarget",
    "LatentAttention",
    "LinearAttention",
    "LowRank",
    "Mamba",
    "Mask",
    "MegablocksExperts",
    "Mixer",
    "Mlp",
    "Moe",
    "Norm",
    "OutputGate",
    "Padding",
    "Parameter",
    "Patches",
    "Positions",
    "Projections",
    "QkNorm",
    "Recurrent",
    "RecurrentWithConv",
    "Rope",
    "Router",
    "Scores",
    "Sections",
    "ShortConv",
    "ShortcutMoe",
    "Sinks",
    "Skip",
    "SparseLatentAttention",
    "Stacked",
    "StateSpace",
    "TensorLayout",
    "Values",
    "Vision",
    "VisionTower",
]
