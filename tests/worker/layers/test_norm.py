"""Norms against their formulas."""

from __future__ import annotations

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import ConditionedNorm, LayerNorm, RmsNorm, norm

X = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def centred(x: torch.Tensor, eps: float) -> torch.Tensor:
    x = x - x.mean(-1, keepdim=True)
    return rms(x, eps)


def filled(layer: RmsNorm | LayerNorm) -> dict[str, torch.Tensor]:
    weights = {name: rows.copy_(torch.randn(rows.shape)) for name, rows in layer.weight_targets()}
    copies = {name: rows.clone() for name, rows in weights.items()}
    layer.process_weights_after_loading()
    return copies


def test_divides_by_the_root_mean_square(context: BuildContext) -> None:
    layer = RmsNorm(spec.Norm(eps=0.5), 6, "norm", context)
    weights = filled(layer)
    assert list(weights) == ["norm.weight"]
    torch.testing.assert_close(layer(X), rms(X, 0.5) * weights["norm.weight"])


def test_a_time_conditions_the_scale(context: BuildContext) -> None:
    condition = spec.TimeCondition(6.0, rank=4, base=100.0)
    layer = ConditionedNorm(spec.Norm(eps=0.5), 6, "norm", condition, context)
    weights = filled(layer)
    down, up = weights["condition_down.weight"], weights["condition_up.weight"]
    phases = 6.0 * torch.tensor([1.0, 100.0 ** (-1 / 3), 100.0 ** (-2 / 3)])
    inner = torch.nn.functional.gelu(down @ torch.cat((phases.cos(), phases.sin())))
    scale = weights["norm.weight"] * (1 + up @ inner)
    torch.testing.assert_close(layer(X), rms(X, 0.5) * scale)


@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_centres_too(context: BuildContext, bias: bool) -> None:
    layer = norm(spec.Norm(eps=0.5, kind="layer", bias=bias), 6, "norm", context)
    weights = filled(layer)
    expected = centred(X, 0.5) * weights["norm.weight"] + weights.get("norm.bias", 0.0)
    torch.testing.assert_close(layer(X), expected)


def test_without_a_scale_nothing_is_loaded(context: BuildContext) -> None:
    layer = norm(spec.Norm(eps=0.5, kind="layer", scaled=False), 6, "norm", context)
    assert filled(layer) == {}
    torch.testing.assert_close(layer(X), centred(X, 0.5))


@pytest.mark.parametrize(("kind", "plain"), [("rms", rms), ("layer", centred)])
def test_the_offset_is_added_to_the_weight(context: BuildContext, kind: str, plain: object) -> None:
    layer = norm(spec.Norm(eps=0.5, kind=kind, offset=1.0), 6, "norm", context)
    weights = filled(layer)
    assert callable(plain)
    torch.testing.assert_close(layer(X), plain(X, 0.5) * (1 + weights["norm.weight"]))


def test_an_offset_keeps_small_weights_in_bfloat16(context: BuildContext) -> None:
    """1 + 2^-10 is 1 in bfloat16, but the checkpoint means it."""
    half = BuildContext(context.device, torch.bfloat16, context.name)
    layer = norm(spec.Norm(eps=0.0, offset=1.0), 6, "norm", half)
    for _, rows in layer.weight_targets():
        rows.fill_(2.0**-10)
    layer.process_weights_after_loading()
    assert layer.weight is not None and float(layer.weight[0]) == 1 + 2.0**-10
    assert layer(X.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_each_head_may_have_a_weight_of_its_own(context: BuildContext, kind: str) -> None:
    layer = norm(spec.Norm(eps=0.5, kind=kind), (3, 6), "norm", context)
    weights = filled(layer)
    plain = rms if kind == "rms" else centred
    torch.testing.assert_close(layer(X), plain(X, 0.5) * weights["norm.weight"])


def test_heads_may_be_stored_one_by_one(context: BuildContext) -> None:
    names = BuildContext(context.device, context.dtype, lambda role: f"{role}s.{{head}}")
    layer = norm(spec.Norm(eps=0.5), (3, 6), "norm", names)
    assert list(filled(layer)) == ["norms.0.weight", "norms.1.weight", "norms.2.weight"]
