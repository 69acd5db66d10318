"""A mixture that joins the stream one layer later."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.mlp import Glu
from baton_worker.layers.moe.shortcut import ShortcutMoe
from baton_worker.models.block import STYLES

DENSE = spec.Glu(6)
MOE = spec.Moe(spec.Router(3, 2, zero_experts=1), DENSE)
DECODER = spec.Decoder(4, 9, (), spec.Norm(1e-6), spec.Head(), style="shortcut")


class Halved(torch.nn.Module):
    """A mixer that is easy to follow."""

    def forward(self, x: torch.Tensor, step: object, pages: object, residual: object) -> object:
        return residual + x / 2


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def filled(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                rows.copy_(torch.ones(rows.shape) if "norm" in name else torch.randn(rows.shape))
            part.process_weights_after_loading()


def test_the_branch_reads_the_first_layer_and_joins_after_the_second() -> None:
    place = BuildContext(
        torch.device("cpu"), torch.float32, lambda r: f"{r}.{{expert}}" if "expert_" in r else r
    )
    forked, glu = ShortcutMoe(spec.ShortcutMoe(DENSE, MOE), 4, place), Glu(DENSE, 4, place)
    blocks = [STYLES["shortcut"](DECODER, Halved(), ffn, place) for ffn in (forked, glu)]
    for block in blocks:
        filled(block)
    x, step = torch.randn(5, 4), ForwardContext(torch.zeros(5, dtype=torch.int64), {}, {})
    with torch.inference_mode():
        ours = x
        for block in blocks:
            ours = block(ours, step, torch.empty(0))
        y = x + norm(x) / 2
        late = forked.branch(norm(y), None)
        y = y + forked.dense(norm(y), None)
        y = y + norm(y) / 2
        y = y + glu(norm(y), None)
        torch.testing.assert_close(ours, y + late)
    assert not step.pending


def test_its_experts_are_found_by_the_loader() -> None:
    decoder = replace(DECODER, layers=((None, spec.ShortcutMoe(DENSE, MOE)), (None, DENSE)))
    ((_, ffn), (_, dense)) = decoder.with_router("balanced").layers
    assert isinstance(ffn, spec.ShortcutMoe) and ffn.branch.router.kind == "balanced"
    assert dense == DENSE and decoder.with_router("top_k") is decoder
