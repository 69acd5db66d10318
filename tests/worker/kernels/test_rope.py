"""Head norms, rotation and the write to pages in one pass, against torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from baton_worker import spec
from baton_worker.config import Config
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.rope import CpuAngles, CpuHeads, HeadNorm, refuses
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.rope.rope import Angles, Rotary, rotate_, turn_
from baton_worker.platform import machine
from baton_worker.spec import Rope

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
CPU = torch.device("cpu")
NUM_HEADS, NUM_KV_HEADS = 6, 2


@pytest.fixture(autouse=True)
def _built() -> None:
    if library("rope") is None:
        pytest.skip("the kernels cannot be built here")


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("head_dim", "dim"), [(64, 64), (80, 80), (64, 24), (8, 8), (128, 64)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("layout", Layout)
def test_equals_the_twins(
    dtype: torch.dtype, head_dim: int, dim: int, normed: bool, layout: Layout
) -> None:
    generator = torch.Generator().manual_seed(dim)
    num, rotated = 5, NUM_HEADS + NUM_KV_HEADS
    heads = torch.randn(num, rotated + NUM_KV_HEADS, head_dim, generator=generator).to(dtype)
    weights = torch.rand(2, head_dim, generator=generator).to(dtype) + 0.5
    positions = torch.tensor([0, 3, 900, 17, 4])
    angles = Rotary(Rope(dim, 10_000.0, 1024), CPU).angles(positions, dtype)
    slots = torch.tensor([7, 2, 0, 11, 5])
    pages = layout.zeros((3, 4, 2, NUM_KV_HEADS, head_dim), dtype=dtype, device=CPU)
    expected, expected_pages = heads.clone().float(), torch.zeros(pages.shape)
    if normed:
        for part, weight in (
            (slice(NUM_HEADS), weights[0]),
            (slice(NUM_HEADS, rotated), weights[1]),
        ):
            expected[:, part] = F.rms_norm(expected[:, part], (head_dim,), weight.float(), 1e-5)
    turn_(
        expected[:, :rotated],
        Rotary(Rope(dim, 10_000.0, 1024), CPU).angles(positions, torch.float32),
    )
    expected_pages.view(12, -1, head_dim)[slots] = expected[:, NUM_HEADS:]
    each = [HeadNorm(weight, 1e-5) for weight in weights]
    kernel = CpuHeads(
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=head_dim,
        dim=dim,
        dtype=dtype,
        norms=(each[0], each[1], None) if normed else (None, None, None),
    )
    kernel(heads, angles.cos, angles.sin, slots, pages)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(heads.float(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(pages.float(), expected_pages, rtol=tolerance, atol=tolerance)


def test_a_token_has_the_same_bits_in_every_batch() -> None:
    heads = torch.randn(200, 10, 64, generator=torch.Generator().manual_seed(0))
    angles = Rotary(Rope(64, 10_000.0, 1024), CPU).angles(torch.arange(200), torch.float32)
    kernel = CpuHeads(
        num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS, head_dim=64, dim=64, dtype=torch.float32
    )
    pages, alone = torch.zeros(2, 200, 1, 2, NUM_KV_HEADS, 64).unbind(0)
    whole, slots = heads.clone(), torch.arange(200)
    kernel(whole, angles.cos, angles.sin, slots, pages)
    for i in range(0, 200, 23):
        one = heads[i : i + 1].clone()
        kernel(one, angles.cos[i : i + 1], angles.sin[i : i + 1], slots[i : i + 1], alone)
        assert torch.equal(one[0], whole[i]) and torch.equal(alone[i], pages[i])


def norm_in_place(heads: torch.Tensor, norms: Sequence[HeadNorm]) -> None:
    rotated = NUM_HEADS + NUM_KV_HEADS
    parts = (slice(NUM_HEADS), slice(NUM_HEADS, rotated), slice(rotated, None))[: len(norms)]
    for part, norm in zip(parts, norms, strict=True):
        some = heads[:, part].flatten(1) if norm.over == "full" else heads[:, part]
        assert norm.weight is not None
        if norm.centered:
            y = F.layer_norm(some, some.shape[-1:], None, None, norm.eps) * norm.weight + norm.bias
        else:
            y = F.rms_norm(some, some.shape[-1:], None, norm.eps) * norm.weight
        heads[:, part] = y.view_as(heads[:, part])


def test_every_kind_of_norm_and_rotation() -> None:
    generator = torch.Generator().manual_seed(0)
    rotated, size = NUM_HEADS + NUM_KV_HEADS, 24
    positions, slots = torch.tensor([0, 3, 900, 17, 4]), torch.tensor([7, 2, 0, 11, 5])
    for over, centered, norm_last, interleaved, dim in (
        ("full", False, False, False, 24),
        ("each", True, False, True, 12),
        ("head", False, True, True, 24),
        ("head", True, True, False, 8),
        ("each", False, False, False, 0),
    ):

        def drawn(heads: int, over: str = over, centered: bool = centered) -> HeadNorm:
            width = {"head": (size,), "each": (heads, size), "full": (heads * size,)}[over]
            weight, bias = torch.randn(2, *width, generator=generator)
            return HeadNorm(weight, 1e-5, bias if centered else None, over, centered)

        norms = drawn(NUM_HEADS), drawn(NUM_KV_HEADS)
        of_values = HeadNorm(None, 1e-5) if norm_last else None
        heads = torch.randn(5, rotated + NUM_KV_HEADS, size, generator=generator)
        expected, cos, sin = heads.clamp(-1.25, 1.25), None, None
        if not norm_last:
            norm_in_place(expected, norms)
        if dim:
            rope = Rope(dim, 10_000.0, 1024, interleaved=interleaved)
            angles = Rotary(rope, CPU).angles(positions, torch.float32)
            turn_(expected[:, :rotated], angles)
            cos, sin = angles.cos, angles.sin
        if norm_last:
            norm_in_place(expected, norms)
            expected[:, rotated:] = F.rms_norm(expected[:, rotated:], (size,), None, 1e-5)
        heat = (0.1, 8.0, 1.0) if norm_last else ()
        if heat:
            stretch = 1 + 0.1 * ((positions + 1) / 8).floor().log1p()
            expected[:, :NUM_HEADS] *= stretch[:, None, None]
        kernel = CpuHeads(
            num_heads=NUM_HEADS,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=size,
            dim=dim,
            dtype=torch.float32,
            norms=(*norms, of_values),
            norm_last=norm_last,
            temperature=heat,
            interleaved=interleaved,
            clip=1.25,
        )
        pages = Layout.HND.zeros((3, 4, 2, NUM_KV_HEADS, size), dtype=torch.float32, device=CPU)
        kernel(heads, cos, sin, slots, pages, positions if heat else None)
        torch.testing.assert_close(heads, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(pages.reshape(12, -1, size)[slots], heads[:, NUM_HEADS:])


def test_heads_that_only_turn() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, tolerance in TOLERANCES.items():
        for each, dim, interleaved in ((1, 24, False), (3, 24, True), (1, 6, True), (3, 8, False)):
            heads = torch.randn(5, 4, 40, generator=generator).to(dtype)
            some = heads[:, 1:, 16:]  # Between others, which stay.
            phases = 3 * torch.randn(5, each, dim, generator=generator)
            angles = Angles(phases.cos().to(dtype), phases.sin().to(dtype), interleaved)
            expected = heads.float()
            exact = Angles(angles.cos.float(), angles.sin.float(), interleaved)
            turn_(expected[:, 1:, 16:], exact)
            rotate_(some, angles)
            torch.testing.assert_close(heads.float(), expected, rtol=tolerance, atol=tolerance)


LATENT = spec.LatentAttention(
    num_heads=3,
    kv_rank=20,
    nope_dim=6,
    rope_dim=12,
    value_dim=5,
    scale=1.0,
    rope=Rope(8, 100.0, 64, interleaved=True),
    norm=spec.Norm(1e-6),
    latent_scale=1.7,
    temperature=(0.1, 8.0),
)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_latents_equal_their_twin(level: IsaLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    if not level.needs <= machine.instructions():
        pytest.skip(f"this CPU has no {level.name}")
    path = Builder("", Config.load().cache_dir / "kernels").library("rope", level)
    kernels = ctypes.CDLL(str(path))
    monkeypatch.setattr("baton_worker.kernels.rope.library", lambda name: kernels)
    for dtype in TOLERANCES:
        check_latents(dtype)


def check_latents(dtype: torch.dtype) -> None:
    for settings in (LATENT, replace(LATENT, rope=None, temperature=None, latent_scale=1.0)):
        context = BuildContext(CPU, dtype)
        layer = LatentAttention(settings, 8, context)
        assert layer.norm.weight is not None
        torch.nn.init.uniform_(layer.norm.weight, 0.5, 1.5)
        generator = torch.Generator().manual_seed(0)
        drawn = partial(torch.randn, generator=generator)
        heads, query, down = drawn(70, 4, 32), drawn(70, 3 * 18), drawn(70, 32)
        positions, slots = 7 * torch.arange(70), torch.arange(70).flip(0)
        step = ForwardContext(slots, {}, {}, positions=positions)
        if settings.rope is not None:
            exact = Rotary(settings.rope, CPU).angles(positions, torch.float32)
            step.angles[settings.rope] = exact
        given = [x.to(dtype) for x in (heads, query, down)]
        twin = given[0].float()
        layer.norm.weight.data = layer.norm.weight.data.float()
        layer._place(twin, given[1].float(), given[2].float(), step)
        pages = torch.zeros(9, 8, 1, 1, 40, dtype=dtype)[..., 4:36]
        angles = None
        if settings.rope is not None:
            angled = Rotary(settings.rope, CPU).angles(positions, dtype)
            angles = angled.cos, angled.sin
        place = layer._in_one_pass
        assert place is not None
        place(*given, angles, positions, slots, pages)
        tolerance = TOLERANCES[dtype]
        torch.testing.assert_close(given[0].float(), twin, rtol=tolerance, atol=tolerance)
        assert torch.equal(pages.flatten(0, 1)[slots, 0, 0], given[0][:, -1])


def test_what_it_cannot_do_is_refused_with_a_reason() -> None:
    assert "float64" in str(refuses(torch.float64, CPU))
    assert "not on the CPU" in str(refuses(torch.float32, torch.device("cuda")))
    assert refuses(torch.bfloat16, CPU) is None


@pytest.mark.row("F05.01")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_angles_equal_their_definition(
    dtype: torch.dtype, interleaved: bool, factor: float
) -> None:
    frequencies = 10_000.0 ** -(torch.arange(20) / 20)
    positions = torch.tensor([0, 1, 77, 131_071, 5_000_000])
    kernel = CpuAngles(frequencies, factor, interleaved=interleaved, dtype=dtype)
    phases = (positions.float()[:, None] * frequencies).double()
    order = (-1, 2) if interleaved else (2, -1)
    for found, of, signs in zip(
        kernel(positions), (phases.cos(), phases.sin()), ([1, 1], [-1, 1]), strict=True
    ):
        assert found.shape == (5, 1, 40) and found.dtype is dtype
        pairs = found[:, 0].unflatten(1, order).float()
        for half, sign in enumerate(signs):
            ours = pairs.select(2 if interleaved else 1, half)
            wanted = (sign * factor * of).to(dtype).float()
            # One bit apart at most: of a float and of a bfloat16.
            bit = 2.0**-22 if dtype is torch.float32 else 2.0**-7
            torch.testing.assert_close(ours, wanted, rtol=bit, atol=2.0**-22)


def test_angles_of_a_token_do_not_depend_on_the_others() -> None:
    kernel = CpuAngles(torch.rand(12), 1.0, interleaved=False, dtype=torch.float32)
    positions = torch.arange(1000) * 37
    together = torch.stack(kernel(positions))
    for at in (0, 1, 499, 999):
        assert torch.equal(torch.stack(kernel(positions[at : at + 1]))[:, 0], together[:, at])
