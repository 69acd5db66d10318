"""Plain parts of vision towers, one image at a time, written from their published descriptions.

Nothing here comes from Baton's layers: what is computed with these functions is an independent
re-computation of what the towers must answer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Weights(dict[str, Tensor]):
    """Random tensors by their names in a checkpoint, and the layers that they make."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(3)

    def random(self, name: str, *shape: int, scale: float = 0.15, shift: float = 0.0) -> Tensor:
        """A new tensor."""
        self[name] = torch.randn(shape, generator=self._generator) * scale + shift
        return self[name]

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> None:
        """A matrix [outputs, inputs] and its bias."""
        self.random(f"{name}.weight", outputs, inputs)
        if bias:
            self.random(f"{name}.bias", outputs)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        """The parameters of a norm, about one and about zero."""
        self.random(f"{name}.weight", width, shift=1.0)
        if bias:
            self.random(f"{name}.bias", width)

    def run(self, name: str, x: Tensor) -> Tensor:
        """W x + b."""
        return F.linear(x, self[f"{name}.weight"], self.get(f"{name}.bias"))

    def layer_norm(self, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
        """LayerNorm over the last axis."""
        weight = self[f"{name}.weight"]
        return F.layer_norm(x, weight.shape, weight, self.get(f"{name}.bias"), eps)

    def rms_norm(self, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * w."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self[f"{name}.weight"]


def attend(
    query: Tensor, key: Tensor, value: Tensor, num_heads: int, bias: Tensor | None = None
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v of [N, C], [M, C] and [M, C] to [N, C]."""
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(0, 1) for x in (query, key, value))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def turned(x: Tensor, angles: Tensor, num_heads: int) -> Tensor:
    """[N, C], channel i of each head turned with channel i + dim / 2, by angles [N, dim / 2]."""
    heads = x.unflatten(-1, (num_heads, -1))
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(1)


def axial_angles(rows: int, columns: int, dim: int, base: float = 10_000.0) -> Tensor:
    """Angles [rows * columns, dim / 2] of patches row by row: the first half by row."""
    powers = base ** -(torch.arange(0, dim // 2, 2) / (dim // 2))
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.cat([axis.reshape(-1, 1) * powers for axis in (row, column)], dim=1)


def cells(image: Tensor, patch: int) -> Tensor:
    """[3, H, W] to [rows * columns, 3 * patch * patch], row by row."""
    return F.unfold(image[None], patch, stride=patch)[0].T


def in_windows(x: Tensor, rows: int, columns: int, size: int = 2) -> Tensor:
    """[rows * columns, C] row by row to windows of `size` x `size`, [windows, size * size, C]."""
    grid = x.view(rows // size, size, columns // size, size, -1)
    return grid.transpose(1, 2).reshape(-1, size * size, x.shape[-1])


def patches_of(image: Tensor, patch: int, size: int = 2) -> Tensor:
    """An image as mm-preprocess sends it: patches that are merged follow one another."""
    rows, columns = image.shape[1] // patch, image.shape[2] // patch
    return in_windows(cells(image, patch), rows, columns, size).flatten(0, 1)


def siglip_weights(w: Weights, prefix: str, v: dict[str, Any]) -> None:
    """SigLIP's tensors (Zhai et al. 2023, arXiv:2303.15343)."""
    width, patch, side = v["hidden_size"], v["patch_size"], v["image_size"] // v["patch_size"]
    w.random(f"{prefix}.embeddings.patch_embedding.weight", width, 3, patch, patch)
    w.random(f"{prefix}.embeddings.patch_embedding.bias", width)
    w.random(f"{prefix}.embeddings.position_embedding.weight", side * side, width)
    w.norm(f"{prefix}.post_layernorm", width)
    for layer in range(v["num_hidden_layers"]):
        name = f"{prefix}.encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            w.linear(f"{name}.self_attn.{part}", width, width)
        w.linear(f"{name}.mlp.fc1", width, v["intermediate_size"])
        w.linear(f"{name}.mlp.fc2", v["intermediate_size"], width)
        w.norm(f"{name}.layer_norm1", width)
        w.norm(f"{name}.layer_norm2", width)


def siglip_layers(
    w: Weights, prefix: str, v: dict[str, Any], x: Tensor, angles: Tensor | None = None
) -> Tensor:
    """SigLIP's layers over the patches [N, width] of one image."""
    heads = v["num_attention_heads"]
    for layer in range(v["num_hidden_layers"]):
        name = f"{prefix}.encoder.layers.{layer}"
        normed = w.layer_norm(f"{name}.layer_norm1", x)
        query, key, value = (w.run(f"{name}.self_attn.{part}_proj", normed) for part in "qkv")
        if angles is not None:
            query, key = turned(query, angles, heads), turned(key, angles, heads)
        x = x + w.run(f"{name}.self_attn.out_proj", attend(query, key, value, heads))
        inner = w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.layer_norm2", x))
        x = x + w.run(f"{name}.mlp.fc2", F.gelu(inner, approximate="tanh"))
    return x


def siglip_patches(w: Weights, prefix: str, image: Tensor, patch: int) -> Tensor:
    """Projected patches of an image, row by row, without positions."""
    weight = w[f"{prefix}.embeddings.patch_embedding.weight"].flatten(1)
    return F.linear(cells(image, patch), weight, w[f"{prefix}.embeddings.patch_embedding.bias"])


def siglip(w: Weights, prefix: str, v: dict[str, Any], image: Tensor) -> Tensor:
    """The states behind the last layer, not normed, of an image of the size of its positions."""
    x = siglip_patches(w, prefix, image, v["patch_size"])
    x = x + w[f"{prefix}.embeddings.position_embedding.weight"]
    return siglip_layers(w, prefix, v, x)


def resized(table: Tensor, rows: int, columns: int, **how: Any) -> Tensor:
    """Positions [side * side, C] as an image of another size, row by row."""
    side = math.isqrt(len(table))
    grid = table.view(1, side, side, -1).permute(0, 3, 1, 2)
    return F.interpolate(grid, (rows, columns), **how)[0].flatten(1).T
