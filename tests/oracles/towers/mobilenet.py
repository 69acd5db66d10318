"""Gemma 3n beside MobileNetV5, a sixteenth as wide, as timm and Google publish it: transformers has
the language model, and of the encoder timm alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import Weights
from tests.oracles.towers.sights import Images, Sight, pixels, save, sight, text_model

TIMM, EMBED, END, LAST, SIDE = "vision_tower.timm_model", "embed_vision", 318, 2048, 2
STAGES: list[list[str]] = [
    ["e 3 2 4"] + ["e 3 1 4"] * 2,
    ["u 3 5 2 6", "u 5 0 1 4", "u 3 0 1 4", "u 5 0 1 4", "u 3 0 1 4"],
    ["u 5 5 2 6"] + ["u 5 0 1 4"] * 7 + ["u 0 0 1 1"] + ["q 12 64 2", "u 0 0 1 2"] * 14,
    ["u 5 5 2 6"] + ["q 16 96 1", "u 0 0 1 2"] * 19,
]
"""Edge residuals (kernel, stride, expansion), universal inverted bottlenecks (first and middle
kernel, stride, expansion), and multi-query attention (heads, channels of each, stride of keys)."""
WIDTHS = [8, 16, 40, 80]


def weights() -> Weights:
    w, inputs = Weights(), 64
    convolution(w, f"{TIMM}.conv_stem.conv", 3, inputs, 3)
    w.random(f"{TIMM}.conv_stem.conv.bias", inputs)
    w.norm(f"{TIMM}.conv_stem.bn", inputs, bias=False)
    for stage, (blocks, width) in enumerate(zip(STAGES, WIDTHS, strict=True)):
        for number, block in enumerate(blocks):
            name = f"{TIMM}.blocks.{stage}.{number}"
            {"e": edge, "u": inverted, "q": query}[block[0]](w, name, block, inputs, width)
            inputs = width
    both = sum(WIDTHS[-2:])
    step(w, f"{TIMM}.msfa.ffn.pw_exp", both, 2 * both)
    step(w, f"{TIMM}.msfa.ffn.pw_proj", 2 * both, LAST)
    w.norm(f"{TIMM}.msfa.norm", LAST, bias=False)
    w.random(f"{EMBED}.embedding.weight", 4, LAST)
    w.norm(f"{EMBED}.hard_embedding_norm", LAST, bias=False)
    w.norm(f"{EMBED}.soft_embedding_norm", LAST, bias=False)
    w.linear(f"{EMBED}.embedding_projection", LAST, 48, bias=False)
    return w


def convolution(w: Weights, name: str, inputs: int, outputs: int, size: int = 1) -> None:
    w.random(f"{name}.weight", outputs, inputs, size, size, scale=(inputs * size**2) ** -0.5)


def step(w: Weights, name: str, inputs: int, outputs: int, size: int = 1) -> None:
    convolution(w, f"{name}.conv", inputs, outputs, size)
    w.norm(f"{name}.bn", outputs, bias=False)


def edge(w: Weights, name: str, block: str, inputs: int, width: int) -> None:
    kernel, _, expansion = map(int, block.split()[1:])
    convolution(w, f"{name}.conv_exp", inputs, inputs * expansion, kernel)
    w.norm(f"{name}.bn1", inputs * expansion, bias=False)
    convolution(w, f"{name}.conv_pwl", inputs * expansion, width)
    w.norm(f"{name}.bn2", width, bias=False)


def inverted(w: Weights, name: str, block: str, inputs: int, width: int) -> None:
    first, middle, _, expansion = map(int, block.split()[1:])
    if first:
        step(w, f"{name}.dw_start", 1, inputs, first)
    step(w, f"{name}.pw_exp", inputs, inputs * expansion)
    if middle:
        step(w, f"{name}.dw_mid", 1, inputs * expansion, middle)
    step(w, f"{name}.pw_proj", inputs * expansion, width)
    w.random(f"{name}.layer_scale.gamma", width)


def query(w: Weights, name: str, block: str, inputs: int, width: int) -> None:
    heads, dim, stride = map(int, block.split()[1:])
    w.norm(f"{name}.norm", inputs, bias=False)
    convolution(w, f"{name}.attn.query.proj", inputs, heads * dim)
    for role in ("key", "value"):
        if stride > 1:
            convolution(w, f"{name}.attn.{role}.down_conv", 1, inputs, 3)
            w.norm(f"{name}.attn.{role}.norm", inputs, bias=False)
        convolution(w, f"{name}.attn.{role}.proj", inputs, dim)
    convolution(w, f"{name}.attn.output.proj", heads * dim, width)
    w.random(f"{name}.layer_scale.gamma", width)


def run(w: Weights, name: str, x: Tensor, stride: int = 1) -> Tensor:
    """With zeros around as TensorFlow has them: more to the right and below."""
    weight = w[f"{name}.weight"]
    size = weight.shape[-1]
    for axis in (1, 2):
        side = x.shape[axis]
        missing = max(0, (-(-side // stride) - 1) * stride + size - side)
        around = (missing // 2, missing - missing // 2)
        x = F.pad(x, around if axis == 2 else (0, 0, *around))
    groups = len(weight) if weight.shape[1] == 1 and len(weight) == len(x) else 1
    bias = w.get(f"{name}.bias")
    return F.conv2d(x[None], weight, bias, stride, groups=groups)[0]


def normed(w: Weights, name: str, x: Tensor, *, act: bool = False) -> Tensor:
    out = w.rms_norm(name, x.permute(1, 2, 0)).permute(2, 0, 1)
    return F.gelu(out, approximate="tanh") if act else out


def block_of(w: Weights, name: str, block: str, x: Tensor) -> Tensor:
    kind, numbers = block[0], list(map(int, block.split()[1:]))
    shortcut = x
    if kind == "e":
        x = normed(w, f"{name}.bn1", run(w, f"{name}.conv_exp", x, numbers[1]), act=True)
        x = normed(w, f"{name}.bn2", run(w, f"{name}.conv_pwl", x))
    elif kind == "u":
        first, middle, stride, _ = numbers
        if first:
            x = run(w, f"{name}.dw_start.conv", x, 1 if middle else stride)
            x = normed(w, f"{name}.dw_start.bn", x)
        x = normed(w, f"{name}.pw_exp.bn", run(w, f"{name}.pw_exp.conv", x), act=True)
        if middle:
            x = run(w, f"{name}.dw_mid.conv", x, stride)
            x = normed(w, f"{name}.dw_mid.bn", x, act=True)
        x = normed(w, f"{name}.pw_proj.bn", run(w, f"{name}.pw_proj.conv", x))
        x = x * w[f"{name}.layer_scale.gamma"][:, None, None]
    else:
        x = attended(w, name, numbers, normed(w, f"{name}.norm", x))
        x = x * w[f"{name}.layer_scale.gamma"][:, None, None]
    return x + shortcut if x.shape == shortcut.shape else x


def attended(w: Weights, name: str, numbers: list[int], x: Tensor) -> Tensor:
    heads, dim, stride = numbers
    seen = []
    for role in ("key", "value"):
        part = x
        if stride > 1:
            part = run(w, f"{name}.attn.{role}.down_conv", x, stride)
            part = normed(w, f"{name}.attn.{role}.norm", part)
        seen.append(run(w, f"{name}.attn.{role}.proj", part).flatten(1).T)
    asked = run(w, f"{name}.attn.query.proj", x).flatten(1).T.view(-1, heads, dim)
    scores = torch.einsum("thd,kd->thk", asked, seen[0]) * dim**-0.5
    out = torch.einsum("thk,kd->thd", scores.softmax(-1), seen[1]).flatten(1)
    return run(w, f"{name}.attn.output.proj", out.T.view(-1, *x.shape[1:]))


def embedded(w: Weights, image: Tensor, side: int) -> Tensor:
    """[side * side + 1, 48]: places, and the token that ends an image."""
    x = normed(w, f"{TIMM}.conv_stem.bn", run(w, f"{TIMM}.conv_stem.conv", image, 2), act=True)
    kept = []
    for stage, blocks in enumerate(STAGES):
        for number, block in enumerate(blocks):
            x = block_of(w, f"{TIMM}.blocks.{stage}.{number}", block, x)
        kept.append(x)
    wide = F.interpolate(kept[3][None], size=kept[2].shape[1:], mode="nearest")[0]
    x = run(w, f"{TIMM}.msfa.ffn.pw_exp.conv", torch.cat((kept[2], wide)))
    x = run(
        w, f"{TIMM}.msfa.ffn.pw_proj.conv", normed(w, f"{TIMM}.msfa.ffn.pw_exp.bn", x, act=True)
    )
    x = normed(w, f"{TIMM}.msfa.ffn.pw_proj.bn", x)
    if x.shape[1] % side:
        x = F.interpolate(x[None], size=(side, side), mode="bilinear")[0]
    else:
        x = F.avg_pool2d(x, x.shape[1] // side)
    places = normed(w, f"{TIMM}.msfa.norm", x).flatten(1).T * LAST**0.5
    soft = w.rms_norm(f"{EMBED}.soft_embedding_norm", places)
    hard = w.rms_norm(f"{EMBED}.hard_embedding_norm", w[f"{EMBED}.embedding.weight"][1:2])
    out = w.run(f"{EMBED}.embedding_projection", torch.cat((soft, hard)))
    return out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-6)


class Text:
    """The language model, which is told the tokens of all that it embeds: each layer has an
    embedding of its own for them."""

    def __init__(self, model: Any) -> None:
        self.model, self._tokens = model, list[int]()

    def get_input_embeddings(self) -> Any:
        return self._embed

    def _embed(self, tokens: Tensor) -> Tensor:
        self._tokens += tokens.tolist()
        found: Tensor = self.model.get_input_embeddings()(tokens)
        return found

    def __call__(self, inputs_embeds: Tensor) -> Any:
        own = self.model.model.get_per_layer_inputs(torch.tensor([self._tokens]))
        return self.model(inputs_embeds=inputs_embeds, per_layer_inputs=own)


def checkpoint(folder: Path, architecture: str, **changes: Any) -> tuple[Text, Weights]:
    """Save model and encoder of images; `changes` are other fields of the config."""
    model, config, text = text_model("Gemma3nForCausalLM")
    w = weights()
    fields = {
        "model_type": "gemma3n",
        "text_config": config,
        "vision_config": {"architecture": "mobilenetv5_300m_enc", "hidden_size": LAST}
        | {"vocab_size": 4, "vocab_offset": END - 1, "rms_norm_eps": 1e-6}
        | {"model_args": {"channel_multiplier": 1 / 16}},
        **{"vision_soft_tokens_per_image": SIDE**2, "image_token_id": 319, "eoi_token_id": END},
    }
    named = Weights()
    named.update({f"model.{name}": tensor for name, tensor in w.items()})
    names = ("model.", "model.language_model.")
    save(folder, architecture, fields | changes, named, text, names)
    return Text(model), w


@sight("Gemma3nForConditionalGeneration")
def gemma3n(folder: Path, architecture: str) -> Sight:
    """Places that are pooled, and places that are interpolated."""
    text, w = checkpoint(folder, architecture)
    images: Images = [(pixels(n, 3, size, size), (1, 1, 1)) for n, size in ((1, 64), (2, 48))]
    return Sight(images, [embedded(w, image, SIDE) for image, _ in images], text)
