"""Residual styles against their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from baton_worker.layers.attention.gqa import Attention as Heads
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models.block import STYLES
from baton_worker.models.residual_half import PostNorm
from baton_worker.spec import (
    Attention,
    Decoder,
    Head,
    Norm,
)

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
Fn = Callable[[Tensor], Tensor]


class Part(nn.Module):
    """A mixer or an ffn that multiplies, and adds the residual that it is given."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        residual = rest[-1]
        return self.factor * x if residual is None else residual + self.factor * x


def block(style: str, *, mixer: Part | None, ffn: Part | None, scale: float = 1.0) -> nn.Module:
    decoder = Decoder(8, 4, ((None, None),), Norm(1e-5), Head(), style=style, residual_scale=scale)
    made = STYLES[style](decoder, mixer, ffn, SITE)
    for seed, layer in enumerate(part for part in made.modules() if isinstance(part, Layer)):
        for _, weight in layer.weight_targets():
            weight.copy_(torch.randn(8, generator=torch.Generator().manual_seed(seed)))
    return made


def norms(made: nn.Module) -> dict[str, Fn]:
    named = {}
    for layer in made.modules():
        if isinstance(layer, Layer):
            ((name, weight),) = layer.weight_targets()
            named[name.removesuffix(".weight")] = lambda x, w=weight: (
                x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w
            )
    return named


def sequential(half: Callable[[Tensor, Fn, str, dict[str, Fn], float], Tensor]) -> Any:
    def expected(x: Tensor, n: dict[str, Fn], scale: float) -> Tensor:
        x = half(x, lambda y: 2 * y, "mixer", n, scale)
        return half(x, lambda y: 3 * y, "ffn", n, scale)

    return expected


EXPECTED = {
    "pre": sequential(lambda x, f, role, n, s: x + s * f(n[f"{role}_norm"](x))),
    "post": sequential(lambda x, f, role, n, s: x + s * n[f"{role}_post_norm"](f(x))),
    "sandwich": sequential(
        lambda x, f, role, n, s: x + s * n[f"{role}_post_norm"](f(n[f"{role}_norm"](x)))
    ),
    "after": sequential(lambda x, f, role, n, s: n[f"{role}_norm"](x + f(x))),
    "normed": sequential(lambda x, f, role, n, s: n[f"{role}_norm"](x) + f(n[f"{role}_norm"](x))),
    "parallel": lambda x, n, s: x + 2 * n["mixer_norm"](x) + 3 * n["mixer_norm"](x),
    "parallel_two_norms": lambda x, n, s: x + 2 * n["mixer_norm"](x) + 3 * n["ffn_norm"](x),
}


@pytest.mark.parametrize("style", EXPECTED)
def test_styles_follow_their_formula(style: str) -> None:
    made = block(style, mixer=Part(2), ffn=Part(3))
    expected = EXPECTED[style](X, norms(made), 1.0)
    with torch.inference_mode():
        torch.testing.assert_close(made(X, None, X), expected)


def test_norms_may_sit_where_the_mixer_wants_them() -> None:
    """After the halves of a layer of attention, before those of any other."""
    settings = Attention(2, 1, 4, 0.5, None)
    part, ffn = Heads(settings, 8, SITE), Part(3)
    decoder = Decoder(8, 4, ((settings, None),), Norm(1e-5), Head(), style="by_mixer")
    seeing = STYLES["by_mixer"](decoder, part, ffn, SITE)
    assert isinstance(seeing.mixer_half, PostNorm) and isinstance(seeing.ffn_half, PostNorm)
    made = block("by_mixer", mixer=Part(2), ffn=ffn)
    expected = EXPECTED["pre"](X, norms(made), 1.0)
    with torch.inference_mode():
        torch.testing.assert_close(made(X, None, X), expected)


@pytest.mark.parametrize("style", ["pre", "post", "sandwich"])
def test_what_a_half_adds_is_scaled(style: str) -> None:
    made = block(style, mixer=Part(2), ffn=Part(3), scale=0.25)
    expected = EXPECTED[style](X, norms(made), 0.25)
    with torch.inference_mode():
        torch.testing.assert_close(made(X, None, X), expected)


def test_a_missing_half_takes_its_norm_with_it() -> None:
    made = block("pre", mixer=None, ffn=Part(3))
    assert list(norms(made)) == ["ffn_norm"]
    with torch.inference_mode():
        torch.testing.assert_close(made(X, None, X), X + 3 * norms(made)["ffn_norm"](X))
    assert torch.equal(block("pre", mixer=None, ffn=None)(X, None, X), X)
