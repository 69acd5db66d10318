"""FoPE's angles against the formula; its models are compared in tests/worker/models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from baton.errors import ModelError
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.rope.fope import Fourier
from baton_worker.layers.rope.rope import Rotary
from baton_worker.spec import FourierRope, Rope

ROPE = FourierRope(8, 100.0, 64, num_heads=4, num_kv_heads=2, kept=3)
PLACES = torch.tensor([0, 1, 7, 63])


def filled(rope: FourierRope, context: BuildContext, *, like_plain: bool = False) -> Fourier:
    layer, generator = Fourier(rope, context), torch.Generator().manual_seed(0)
    for _, matrices in layer.weight_targets():
        matrices.copy_(torch.eye(rope.kept).expand_as(matrices))
        if not like_plain:
            matrices += 0.3 * torch.randn(matrices.shape, generator=generator)
    return layer


@pytest.mark.row("F05.12")
@pytest.mark.parametrize("each_head", [True, False])
def test_every_pair_turns_by_all_frequencies(context: BuildContext, each_head: bool) -> None:
    layer = filled(replace(ROPE, each_head=each_head), context)
    angles = layer.angles(PLACES, torch.float32)
    assert angles.cos.shape == (4, 6 if each_head else 1, 8)
    for t, place in enumerate(PLACES.tolist()):
        for head in range(6 if each_head else 1):
            of = (head // 2 if head < 4 else head - 4,) if each_head else ()
            for pair in range(3):
                turns = [place * 100.0 ** (-k / 4) for k in range(3)]
                cos = sum(math.cos(turns[k]) * float(layer.cos[*of, k, pair]) for k in range(3))
                sin = sum(math.sin(turns[k]) * float(layer.sin[*of, k, pair]) for k in range(3))
                found = angles.cos[t, head, [pair, pair + 4]].tolist()
                assert found == pytest.approx([cos, cos], abs=1e-5)
                found = angles.sin[t, head, [pair, pair + 4]].tolist()
                assert found == pytest.approx([-sin, sin], abs=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_unmixed_frequencies_are_a_plain_rope(context: BuildContext, interleaved: bool) -> None:
    """And channels whose frequency is left out do not turn."""
    mixed = filled(replace(ROPE, interleaved=interleaved), context, like_plain=True)
    plain = Rotary(Rope(8, 100.0, 64, interleaved=interleaved), context.device)
    ours, expected = (rope.angles(PLACES, torch.float32) for rope in (mixed, plain))
    last = [6, 7] if interleaved else [3, 7]
    rest = [channel for channel in range(8) if channel not in last]
    for head in range(6):
        torch.testing.assert_close(ours.cos[:, head, rest], expected.cos[:, 0, rest])
        torch.testing.assert_close(ours.sin[:, head, rest], expected.sin[:, 0, rest])
        assert (ours.cos[:, head, last] == 1).all() and not ours.sin[:, head, last].any()


def test_other_scalings_are_refused(context: BuildContext) -> None:
    with pytest.raises(ModelError, match="'yarn' scaling is not supported"):
        Fourier(replace(ROPE, kind="yarn"), context)


def test_whoever_has_no_cache_refuses_it(context: BuildContext) -> None:
    with pytest.raises(ModelError, match="in decoders alone"):
        Rotary(ROPE, context.device)
