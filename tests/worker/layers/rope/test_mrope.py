"""Ropes with several axes, against transformers' own functions on positions as images give them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.layers.rope.mrope import (
    axes_of,
    balanced,
    cycled,
    doubled,
    grid,
    runs,
)
from baton_worker.layers.rope.rope import Rotary, rotate_
from baton_worker.spec import Rope, Sections

CPU = torch.device("cpu")
DIM, BASE, TOKENS = 32, 5_000.0, 40


def qwen2_vl(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.qwen2_vl import modeling_qwen2_vl as m

    return m.Qwen2VLTextConfig, m.Qwen2VLRotaryEmbedding, m.apply_rotary_pos_emb


def qwen2_5_vl(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as m

    return m.Qwen2_5_VLTextConfig, m.Qwen2_5_VLRotaryEmbedding, m.apply_rotary_pos_emb


def qwen3_vl(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.qwen3_vl import modeling_qwen3_vl as m

    return m.Qwen3VLTextConfig, m.Qwen3VLTextRotaryEmbedding, m.apply_rotary_pos_emb


def qwen3_omni(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as m

    config = m.Qwen3OmniMoeTextConfig
    return config, m.Qwen3OmniMoeThinkerTextRotaryEmbedding, m.apply_rotary_pos_emb


def hunyuan_vl(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.hunyuan_vl import HunYuanVLTextConfig
    from transformers.models.hunyuan_vl import modeling_hunyuan_vl as m

    return HunYuanVLTextConfig, m.HunYuanVLRotaryEmbedding, m.apply_rotary_pos_emb


def ernie_vl(sizes: list[int]) -> tuple[Any, Any, Any]:
    from transformers.models.ernie4_5_vl_moe import Ernie4_5_VLMoeTextConfig
    from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as m

    return Ernie4_5_VLMoeTextConfig, m.Ernie4_5_VLMoeTextRotaryEmbedding, m.apply_rotary_pos_emb


CASES = [
    pytest.param(qwen2_vl, (4, 6, 6), "runs", marks=pytest.mark.row("F05.08")),
    pytest.param(qwen2_5_vl, (2, 9, 5), "runs", marks=pytest.mark.row("F05.08")),
    pytest.param(qwen3_vl, (6, 5, 5), "cycled", marks=pytest.mark.row("F05.09")),
    pytest.param(qwen3_vl, (8, 5, 3), "cycled", marks=pytest.mark.row("F05.09")),
    pytest.param(qwen3_omni, (6, 5, 5), "cycled", marks=pytest.mark.row("F05.09")),
    pytest.param(hunyuan_vl, (4, 4, 4, 4), "doubled", marks=pytest.mark.row("F05.13")),
    pytest.param(hunyuan_vl, (3, 6, 5, 2), "doubled", marks=pytest.mark.row("F05.13")),
    pytest.param(ernie_vl, (5, 5, 6), "grid", marks=pytest.mark.row("F05.14")),
]


def heads(seed: int) -> Tensor:
    return torch.randn(TOKENS, 3, DIM, generator=torch.Generator().manual_seed(seed))


def positions(axes: int) -> Tensor:
    """A token may be anywhere on each axis."""
    return torch.randint(0, 200, (axes, TOKENS), generator=torch.Generator().manual_seed(2))


def settings(sizes: tuple[int, ...], layout: str) -> Rope:
    sections = Sections(sizes, layout)
    return Rope(DIM, BASE, 512, interleaved=layout == "grid", sections=sections)


@pytest.mark.parametrize(("classes", "sizes", "layout"), CASES)
def test_heads_turn_as_in_transformers(
    classes: Callable[[Any], tuple[Any, Any, Any]], sizes: tuple[int, ...], layout: str
) -> None:
    config, embedding, apply = classes(list(sizes))
    given = {"rope_type": "default", "rope_theta": BASE, "mrope_section": list(sizes)}
    common = {"hidden_size": 3 * DIM, "num_attention_heads": 3, "num_key_value_heads": 3}
    theirs = embedding(config(**common, head_dim=DIM, rope_parameters=given))
    places, ours = positions(len(sizes)), heads(0)
    batched = ours.transpose(0, 1)[None]
    cos, sin = theirs(batched, places[:, None])
    expected = apply(batched, batched, cos, sin)[0][0].transpose(0, 1)
    angles = Rotary(settings(sizes, layout), CPU).angles(places, torch.float32)
    rotate_(ours, angles)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "layout"),
    [case.values[1:] for case in CASES] + [((4, 4, 4, 4), "runs"), ((2, 7, 7), "balanced")],
)
def test_text_turns_as_by_a_plain_rope(sizes: tuple[int, ...], layout: str) -> None:
    rope, place = settings(sizes, layout), torch.arange(TOKENS)
    plain = Rotary(Rope(DIM, BASE, 512, interleaved=rope.interleaved), CPU)
    expected = plain.angles(place, torch.float32)
    alone, among_images = (
        Rotary(rope, CPU).angles(places, torch.float32)
        for places in (place, place.expand(len(sizes), -1))
    )
    assert torch.equal(alone.cos, among_images.cos) and torch.equal(alone.sin, among_images.sin)
    torch.testing.assert_close(alone.cos, expected.cos, rtol=0, atol=1e-6)
    torch.testing.assert_close(alone.sin, expected.sin, rtol=0, atol=1e-6)


@pytest.mark.row("V32")
def test_axes_take_turns_by_their_shares() -> None:
    """As the published code of openPangu-VL orders these sizes."""
    assert balanced((2, 3, 3)) == [0, 1, 2, 1, 2, 1, 2, 0]
    assert balanced((2, 1, 1)) == [0, 1, 2, 0]
    found = balanced((24, 20, 20))
    assert [found.count(axis) for axis in range(3)] == [24, 20, 20] and found[-1] == 0
    assert all(one != other for one, other in itertools.pairwise(found[:-1]))


@pytest.mark.row("F05.13")
def test_tencent_has_a_run_of_pairs_for_each_of_four_axes() -> None:
    """`apply_rotary_pos_emb_xdrope` of Hunyuan-OCR: angles of the whole head for every axis, of
    which eight pieces are taken in turn."""
    sizes, places, ours = (3, 6, 5, 2), positions(4), heads(1)
    frequencies = BASE ** (-torch.arange(0, DIM, 2) / DIM)
    phases = places.float()[..., None] * torch.cat((frequencies, frequencies))
    pieces = phases.split([*sizes, *sizes], dim=-1)
    phase = torch.cat([piece[n % 4] for n, piece in enumerate(pieces)], -1)[:, None]
    swapped = torch.cat((-ours[..., DIM // 2 :], ours[..., : DIM // 2]), -1)
    expected = ours * phase.cos() + swapped * phase.sin()
    rotate_(ours, Rotary(settings(sizes, "runs"), CPU).angles(places, torch.float32))
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.row("F05.15")
def test_patches_turn_as_in_llama_4() -> None:
    """Its vision encoder multiplies pairs of neighbours by complex numbers, which depend on column
    and row; the class token, which comes last, does not turn."""
    from transformers.models.llama4.configuration_llama4 import Llama4VisionConfig
    from transformers.models.llama4.modeling_llama4 import (
        Llama4VisionRotaryEmbedding,
        vision_apply_rotary_emb,
    )

    config = Llama4VisionConfig(
        hidden_size=3 * DIM, num_attention_heads=3, image_size=24, patch_size=4
    )
    config.rope_parameters = {"rope_type": "default", "rope_theta": BASE}
    ours = torch.randn(37, 3, DIM, generator=torch.Generator().manual_seed(0))
    turns = Llama4VisionRotaryEmbedding(config)(ours)
    expected, _ = vision_apply_rotary_emb(ours[None], ours[None], turns)
    number = torch.arange(36)
    places = torch.nn.functional.pad(torch.stack((number % 6 + 1, number // 6 + 1)), (0, 1))
    sections = Sections((DIM // 4, DIM // 4))
    rope = Rope(DIM, BASE, 37, kind="axial", interleaved=True, sections=sections)
    rotate_(ours, Rotary(rope, CPU).angles(places, torch.float32))
    torch.testing.assert_close(ours, expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(ours[-1], expected[0, -1])


def test_layouts() -> None:
    assert runs([2, 3, 3]) == [0, 0, 1, 1, 1, 2, 2, 2]
    assert cycled([2, 3, 3]) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert cycled([4, 2, 2]) == [0, 1, 2, 0, 1, 2, 0, 0]
    assert grid([3, 3, 2]) == [1, 2, 1, 2, 1, 2, 0, 0]
    assert doubled([1, 1, 1, 1]) == [0, 0, 1, 1, 2, 2, 3, 3]
    first, second = axes_of(Sections((1, 1, 1, 1), "doubled"), 8)
    assert (first.tolist(), second.tolist()) == ([0, 0, 1, 1], [2, 2, 3, 3])


@pytest.mark.parametrize(
    ("sizes", "layout", "message"),
    [
        ((4, 4, 8), "spiral", r"'spiral'.*runs, cycled, grid, doubled"),
        ((4, 4, 4), "runs", r"\[4, 4, 4\].*12 pairs.*16"),
        ((4, 6, 6), "grid", "height, width and time"),
    ],
)
def test_what_does_not_fit_is_refused(sizes: tuple[int, ...], layout: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Rotary(Rope(DIM, BASE, 512, sections=Sections(sizes, layout)), CPU)
