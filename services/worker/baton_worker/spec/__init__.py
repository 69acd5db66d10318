"""What a model is, as pure data: a frozen tree that `models.build` turns into layers.

Nothing here imports torch, so a spec can be read, printed and compared anywhere. Every field has
two users in two architectures; a one-off is a spec type (and a layer file) of its own.
"""

from baton_worker.spec.attention import (
    Attention,
    BorrowingAttention,
    CausalAttention,
    Context,
    DualChunkAttention,
    LatentAttention,
    LendingAttention,
    SparseLatentAttention,
)
from baton_worker.spec.checkpoint import Fused, Stacked
from baton_worker.spec.decoder import Blend, Decoder, Ffn, Mixer, Skip
from baton_worker.spec.embedding import Embedding, Head, Positions
from baton_worker.spec.encoder import (
    AttentionPool,
    Dense,
    Encoder,
    Padding,
    Patches,
    Towers,
    Vision,
)
from baton_worker.spec.ffn import Forked, Glu, Mlp, Moe, PlainExperts, Router
from baton_worker.spec.norm import GatedNorm, Norm
from baton_worker.spec.rope import FourierRope, Parameter, Rope, Sections
from baton_worker.spec.state_space import (
    Bounded,
    Convolved,
    DeltaNet,
    LinearAttention,
    Mamba,
    ShortConv,
    StateSpace,
)

__all__ = [
    "Attention",
    "AttentionPool",
    "Blend",
    "BorrowingAttention",
    "Bounded",
    "CausalAttention",
    "Context",
    "Convolved",
    "Decoder",
    "DeltaNet",
    "Dense",
    "DualChunkAttention",
    "Embedding",
    "Encoder",
    "Ffn",
    "Forked",
    "FourierRope",
    "Fused",
    "GatedNorm",
    "Glu",
    "Head",
    "LatentAttention",
    "LendingAttention",
    "LinearAttention",
    "Mamba",
    "Mixer",
    "Mlp",
    "Moe",
    "Norm",
    "Padding",
    "Parameter",
    "Patches",
    "PlainExperts",
    "Positions",
    "Rope",
    "Router",
    "Sections",
    "ShortConv",
    "Skip",
    "SparseLatentAttention",
    "Stacked",
    "StateSpace",
    "Towers",
    "Vision",
]
