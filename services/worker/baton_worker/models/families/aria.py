"""Aria (arXiv:2410.05993): learned queries that attend to SigLIP's states, beside experts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of, siglip_vision
from baton_worker.models.families.common import Config, architecture, decoder, glu, gqa, named
from baton_worker.models.families.llava import feature_layers, unread
from baton_worker.models.families.moe_common import EXPERT_GATE_UP, LAYER, router
from baton_worker.models.families.vision_common import RENAMES, image_token, with_tower
from baton_worker.spec import (
    Decoder,
    Dense,
    Fused,
    Glu,
    LearnedQueries,
    Moe,
    Norm,
    Normed,
    Stacked,
    Step,
    TensorLayout,
    Vision,
    VisionTower,
)

_TEXT: dict[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "moe_num_experts": 8,
    "moe_topk": 2,
    "moe_num_shared_experts": 2,
}
_VISION: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "patch_size": 32,
}
"""Defaults of transformers."""
_PROJECTOR = "multi_modal_projector"
_ATTENTION = f"{_PROJECTOR}.cross_attn.multihead_attn"
_PARTS = ("query", "key", "value")
_EXPERTS = f"{LAYER}.mlp.experts"
_RENAMES = (
    *RENAMES,
    (rf"^{_ATTENTION}\.in_proj_", f"{_ATTENTION}.in_proj."),
    (r"\.mlp\.experts\.fc1\.weight$", ".mlp.experts.gate_up_proj"),
    (r"\.mlp\.experts\.fc2\.weight$", ".mlp.experts.down_proj"),
)
"""The last two are names of the makers."""


@architecture("AriaForConditionalGeneration")
def aria(c: Config) -> Decoder:
    """As many embeddings as the size of an image has queries."""
    text, stack = _text(c), _stack(c)
    layer = feature_layers(c, len(stack.layers), -1)[0]
    tower = VisionTower(
        stack=replace(stack, layers=stack.layers[:layer], final_norm=False),
        projector=_projector(c, stack, text.hidden),
        image_token=image_token(c, 9),
        hidden=text.hidden,
    )
    return with_tower(text, tower, _RENAMES, unused=unread(c, -1))


def _text(c: Config) -> Decoder:
    """Experts with a gate by SiLU, and shared ones that all tokens use."""
    length = {"served_length": getattr(c, "served_length", None)}
    t = SimpleNamespace(**vars(part_of(c, "text", _TEXT)) | length)
    t.tie_word_embeddings = getattr(c, "tie_word_embeddings", False)
    bias = getattr(t, "attention_bias", False)
    shared = replace(
        glu(t, bias=getattr(t, "mlp_bias", False)),
        intermediate=t.intermediate_size * t.moe_num_shared_experts,
    )
    moe = Moe(router(t, norm=1.0), Glu(t.intermediate_size, "silu"), shared=shared)
    stacked = (
        Stacked(f"{_EXPERTS}.gate_up_proj", EXPERT_GATE_UP, transposed=True),
        Stacked(f"{_EXPERTS}.down_proj", ("expert_down",), transposed=True),
    )
    names = named(LAYER, router="mlp.router")
    return decoder(t, gqa(t, bias=bias, output_bias=bias), moe, names=names, stacked=stacked)


def _stack(c: Config) -> Vision:
    """SigLIP, each patch with the position at the same share of a side (Idefics2)."""
    stack = siglip_vision(c, "vision_tower", _VISION)
    roles = tuple((f"projector_{part}", f"{_ATTENTION}.{part}") for part in _PARTS)
    fused = Fused(f"{_ATTENTION}.in_proj", tuple(role for role, _ in roles))
    return replace(
        stack,
        patches=replace(stack.patches, positions="buckets"),
        tensors=TensorLayout(names=(*stack.tensors.names, *roles), fused=(fused,)),
    )


def _projector(c: Config, stack: Vision, hidden: int) -> tuple[Step, ...]:
    mapping = getattr(c, "projector_patch_to_query_dict", None)
    counts = vars(mapping) if mapping is not None else {"1225": 128, "4900": 256}
    queries = LearnedQueries(
        _PROJECTOR,
        counts=tuple(sorted((int(patches), count) for patches, count in counts.items())),
        width=stack.hidden,
        num_heads=part_of(c, "vision", _VISION).num_attention_heads,
        norm=Norm(1e-5, "layer", bias=True),
    )
    norm = Normed(queries.norm, stack.hidden, f"{_PROJECTOR}.layer_norm")
    mlp = f"{_PROJECTOR}.feed_forward"
    return (
        queries,
        norm,
        Dense(f"{mlp}.linear_in", stack.hidden, hidden, bias=False, activation="gelu_pytorch_tanh"),
        Dense(f"{mlp}.linear_out", hidden, hidden, bias=False),
    )
