"""Models with AIMv2: Ovis 2 as its makers save it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tests.oracles.towers.plain import Weights, in_windows
from tests.oracles.towers.sights import IMAGE_TOKEN, Images, Sight, pixels, save, sight, text_model

VISION = {
    "model_type": "aimv2",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "rms_norm_eps": 1e-5,
}
_VOCABULARY = 50
_NAMES = (
    ("embeddings.patch_embed.", "preprocessor.patchifier.proj."),
    ("embeddings.rms_norm.", "preprocessor.patchifier.norm."),
    ("encoder.layers.", "trunk.blocks."),
    (".rms_norm1.", ".norm_1."),
    (".rms_norm2.", ".norm_2."),
    (".attention.out_proj.", ".attn.proj."),
    (".ffn.gate_proj.", ".mlp.fc1."),
    (".ffn.up_proj.", ".mlp.fc3."),
    (".ffn.down_proj.", ".mlp.fc2."),
)
"""Names of transformers' AIMv2 to those of its makers."""


def stored(w: Weights, tensors: dict[str, Tensor], root: str) -> None:
    """Put the tensors of transformers' AIMv2 among the weights, as its makers name them."""
    for name, tensor in tensors.items():
        if name == "embeddings.position_embedding.weight":
            w[f"{root}.preprocessor.pos_embed"] = tensor[None]
            continue
        for before, after in _NAMES:
            name = name.replace(before, after)
        w[f"{root}.{name}"] = tensor
    for layer in range(VISION["num_hidden_layers"]):  # type: ignore[call-overload]
        stem = f"{root}.trunk.blocks.{layer}"
        parts = [w.pop(f"{stem}.attention.{part}_proj.weight") for part in "qkv"]
        w[f"{stem}.attn.qkv.weight"] = torch.cat(parts)


@sight("Ovis")
def ovis(folder: Path, architecture: str) -> Sight:
    """The layers are those of transformers' AIMv2; 2 x 2 states choose vectors of a vocabulary,
    whose last five stand between tiles, the one at the start last (arXiv:2405.20797)."""
    import transformers

    model, config, text = text_model("Qwen2ForCausalLM")
    w, root = Weights(), "visual_tokenizer"
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = transformers.Aimv2VisionConfig(**VISION, use_head=False)
        encoder = transformers.Aimv2VisionModel(made).eval()
        for parameter in encoder.parameters():
            shift = 1.0 if parameter.ndim == 1 else 0.0
            parameter.data.normal_(shift, 0.15)
    tensors = {k: v for k, v in encoder.state_dict().items() if not k.startswith("rms_norm.")}
    stored(w, tensors, f"{root}.backbone")
    w.random(f"{root}.backbone.trunk.post_trunk_norm.weight", 32)
    w.linear(f"{root}.head.0", 128, _VOCABULARY - 5, bias=False)
    w.norm(f"{root}.head.1", _VOCABULARY - 5)
    w.random("vte.weight", _VOCABULARY, 48)
    given = {"vocab_size": _VOCABULARY, "hidden_stride": 2, "tokenize_function": "softmax"}
    own = {"visual_tokenizer_config": given | {"backbone_config": VISION}, "llm_config": config}
    own |= {"model_type": "ovis", "image_token_id": IMAGE_TOKEN}
    save(folder, architecture, own, w, text, ("model.", "llm.model."), ("lm_head.", "llm.lm_head."))

    def seen(tile: Tensor) -> Tensor:
        found = encoder(tile[None], output_hidden_states=True).hidden_states[-1][0]
        x = in_windows(found, 4, 4).flatten(1)
        logits = w.layer_norm(f"{root}.head.1", w.run(f"{root}.head.0", x), 1e-5)
        return logits.softmax(-1) @ w["vte.weight"][:-5]

    start, grid, column, row, end = reversed(w["vte.weight"][-5:, None])
    images, expected = Images(), []
    for seed, tiles in enumerate((5, 1)):
        image = pixels(seed, tiles, 3, 24, 24)
        parts = [seen(tile) for tile in image]
        between = [parts[1], column, parts[2], row, parts[3], column, parts[4]] if seed == 0 else []
        expected.append(torch.cat([start, parts[0], grid, *between, end]))
        images.append((image, (1, 2, 2) if seed == 0 else (1, 1, 1)))
    return Sight(images, expected, model)
