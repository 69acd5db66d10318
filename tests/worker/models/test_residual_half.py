"""Halves of residual blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.residual import added
from baton_worker.models.residual_half import AfterNorm, PostNorm, PreNorm, SandwichNorm, ScaledNorm
from baton_worker.spec import Decoder, Head, Norm

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)
DECODER = Decoder(8, 4, (), Norm(1e-5), Head(), residual_scale=0.5)


def doubled(x: Tensor, residual: Tensor | None) -> Tensor:
    return 2 * x if residual is None else residual + 2 * x


def test_sums_that_are_left_to_the_next_norm_are_those_of_forward() -> None:
    x = torch.randn(3, 8)
    for kind in (PreNorm, ScaledNorm, PostNorm, SandwichNorm, AfterNorm):
        half = kind(DECODER, "mixer", CONTEXT)
        for layer in half.modules():
            for _, weight in layer.weight_targets() if isinstance(layer, Layer) else ():
                weight.copy_(torch.rand(weight.shape))
        torch.testing.assert_close(added(half.extend(x, doubled)), half(x, doubled))
