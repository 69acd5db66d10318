"""Models with RADIO (arXiv:2312.06709), which transformers has: Nemotron Nano VL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.checkpoints import renamed
from tests.oracles.towers.plain import Weights, in_windows
from tests.oracles.towers.sights import Images, Sight, pixels, save, sight, text_model

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION: dict[str, Any] = SIZES | {
    "intermediate_size": 48,
    "patch_size": 6,
    "args": {
        "model": "tiny",
        "cls_token_per_teacher": True,
        "register_multiple": 4,
        "cpe_max_size": 60,
        "teachers": [{"name": "one"}, {"name": "two"}, {"name": "one"}],
    },
}
_GENERATOR = "vision_model.radio_model.model.patch_generator"
_OWN = (
    ("embeddings.patch_projection", f"{_GENERATOR}.embedder"),
    ("embeddings.position_embedding", f"{_GENERATOR}.pos_embed"),
    ("embeddings.cls_register_token", f"{_GENERATOR}.cls_token.token"),
    ("encoder.layer.", "vision_model.radio_model.model.blocks."),
    ("attention.o_proj", "attn.proj"),
    ("input_conditioner", "vision_model.radio_model.input_conditioner"),
    ("summary_idxs", "vision_model.radio_model.summary_idxs"),
)
"""Names of transformers to NVIDIA's own."""


@torch.no_grad()
def encoder() -> tuple[Any, Weights]:
    """RADIO of transformers, which takes normed pixels, and its tensors as NVIDIA saves them."""
    from transformers import RadioConfig, RadioModel

    config = RadioConfig(
        **SIZES,
        **{"mlp_ratio": 1.5, "patch_size": 6, "max_img_size": 60},
        **{"num_cls_tokens": 2, "num_registers": 2},
    )
    model, w = RadioModel(config).eval(), Weights()
    for name, parameter in model.named_parameters():
        if "layer_scale" not in name:
            parameter.copy_(w.random(name, *parameter.shape, shift=float("norm" in name)))
    tensors = {n: t.detach().clone() for n, t in model.state_dict().items() if "lambda" not in n}
    for name in [name for name in tensors if ".q_proj." in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
    model.make_preprocessor_external()
    w.clear()
    w.update(renamed(tensors, *_OWN))
    return model, w


def seen(model: Any, w: Weights, tile: Tensor, *, v2: bool) -> Tensor:
    """A tile to embeddings: 2 x 2 patches become one."""
    x = in_windows(model(tile[None]).features[0], 4, 4).flatten(1)
    x = w.rms_norm("mlp1.0", x, 1e-5) if v2 else w.layer_norm("mlp1.0", x, 1e-5)
    inner = w.run("mlp1.1", x)
    return w.run("mlp1.3", F.relu(inner).square() if v2 else F.gelu(inner))


@sight("Llama_Nemotron_Nano_VL", "NemotronH_Nano_VL_V2")
def nemotron_nano_vl(folder: Path, architecture: str) -> Sight:
    """The first beside Llama, the second beside Nemotron-H."""
    v2 = architecture.endswith("V2")
    model, config, text = text_model("NemotronHForCausalLM" if v2 else "LlamaForCausalLM")
    radio, w = encoder()
    w.norm("mlp1.0", 128, bias=not v2)
    w.linear("mlp1.1", 128, 40, bias=not v2)
    w.linear("mlp1.3", 40, model.config.hidden_size, bias=not v2)
    fields = {
        "llm_config": config,
        "vision_config": VISION,
        "force_image_size": 24,
        "patch_size": 6,
        "projector_hidden_size": 40,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "img_context_token_id": 300,
    }
    save(folder, architecture, fields, w, text, *_names(text))
    images: Images = [(pixels(1, 3, 3, 24, 24), (1, 1, 2)), (pixels(2, 1, 3, 24, 24), (1, 1, 1))]
    expected = [torch.cat([seen(radio, w, tile, v2=v2) for tile in tiles]) for tiles, _ in images]
    return Sight(images, expected, model, 300)


def _names(text: Weights) -> tuple[tuple[str, str], ...]:
    """The language model's tensors are under a prefix; transformers calls a backbone a model."""
    backbone = any(".mixer." in name for name in text)
    return (
        ("model.", "language_model.backbone." if backbone else "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )
