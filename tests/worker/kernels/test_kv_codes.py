"""Keys and values in one byte per channel: how far from the numbers, and the same bits in C++."""

from __future__ import annotations

import ctypes
from itertools import product

import pytest
import torch

from baton_worker.config import Config
from baton_worker.kernels import rope
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.kernels.kv_codes import CODES, SCALE_BYTES, KVCodes, row_width
from baton_worker.kernels.kv_pages import put
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.rope import CpuHeads
from baton_worker.layers.rope.rope import Rotary
from baton_worker.platform import machine
from baton_worker.spec import Rope

CPU = torch.device("cpu")
RUNS_HERE = [level for level in LEVELS if level.needs <= machine.instructions()]
each_kind = pytest.mark.parametrize(
    "codes",
    [
        pytest.param(CODES["fp8"], id="fp8", marks=pytest.mark.row("F12.05")),
        pytest.param(CODES["int8"], id="int8", marks=pytest.mark.row("F12.06")),
    ],
)


def numbers(*shape: int) -> torch.Tensor:
    """Rows of very different sizes, each with channels of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator)
    rows = torch.logspace(-9, 9, shape[0])[torch.randperm(shape[0], generator=generator)]
    return x * rows.view(-1, *[1] * (len(shape) - 1)) * torch.logspace(-4, 0, shape[-1])


def bound(x: torch.Tensor, codes: KVCodes) -> torch.Tensor:
    """How far a number may be from what is stored of it, beside the rounding of float32.

    INT8: half a scale, and a scale is a 127th of the row's largest number. FP8: a 16th of the
    number itself, and half the least code where that is more; a scale is a 448th of the largest.
    """
    scale = x.abs().amax(-1, keepdim=True) / codes.most
    if codes.name == "int8":
        return scale / 2
    return torch.maximum(x.abs() / 16, scale * 2**-10)


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_number_is_farther_away_than_the_bound(codes: KVCodes, dtype: torch.dtype) -> None:
    x = numbers(2000, 3, 64).to(dtype)
    kept = codes.encode(x)
    assert kept.dtype is torch.uint8 and kept.shape == (2000, 3, row_width(64, codes))
    error = (codes.decode(kept, torch.float32) - x.float()).abs()
    limit = bound(x.float(), codes) * (1 + 1e-5)
    assert (error <= limit).all()
    assert (error > 0.9 * limit).any(), "the bound says how far it is"


@each_kind
def test_rows_on_a_gpu_are_aligned_and_hold_the_same_numbers(codes: KVCodes) -> None:
    there = codes.on(torch.device("cuda"))
    assert codes.on(CPU) is codes and row_width(128, there) % 16 == 0
    x = numbers(50, 3, 64)
    kept, plain = there.encode(x), codes.encode(x)
    assert kept.shape[-1] == row_width(64, there) and not kept[..., plain.shape[-1] :].any()
    assert torch.equal(kept[..., : plain.shape[-1]], plain)
    assert torch.equal(there.decode(kept, torch.float32), codes.decode(plain, torch.float32))


@each_kind
def test_nothing_is_kept_as_nothing(codes: KVCodes) -> None:
    assert not codes.encode(torch.zeros(2, 8))[:, :8].any()
    clean = torch.zeros(1, 8 + SCALE_BYTES, dtype=torch.uint8)
    assert not codes.decode(clean, torch.float32).any(), "a page that nobody has written"


@each_kind
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_number_shows_in_all_of_its_row_and_in_no_other(
    codes: KVCodes, broken: float
) -> None:
    x = torch.ones(3, 2, 16)
    x[1, 0, 5] = broken
    back = codes.decode(codes.encode(x), torch.float32)
    assert back[1, 0].isnan().all()
    assert back.isnan().sum() == 16


@each_kind
def test_a_row_depends_on_itself_alone(codes: KVCodes) -> None:
    x = numbers(40, 4, 32)
    whole = codes.encode(x)
    for row in range(0, 40, 7):
        assert torch.equal(codes.encode(x[row : row + 1])[0], whole[row])


@pytest.fixture(params=RUNS_HERE, ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The write kernel for every level that this machine can run."""
    if library("rope") is None:
        pytest.skip("the kernels cannot be built here")
    level: IsaLevel = request.param
    path = Builder("", Config.load().cache_dir / "kernels").library("rope", level)
    made = ctypes.CDLL(str(path))
    monkeypatch.setattr(rope, "library", lambda name: made)
    return made


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_stores_the_same_bits(
    kernels: ctypes.CDLL, codes: KVCodes, dtype: torch.dtype
) -> None:
    for head_dim, layout in product([8, 20, 64, 80, 256], Layout):
        num, num_heads, num_kv_heads = 200, 3, 2
        heads = numbers(num, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
        heads[5, -1, 3], heads[6, -1, 3] = float("inf"), float("nan")
        heads[7] = 0
        angles = Rotary(Rope(8, 10_000.0, 1024), CPU).angles(torch.arange(num), dtype)
        slots = torch.randperm(num, generator=torch.Generator().manual_seed(1))
        shape = (num // 4, 4, 2, num_kv_heads, row_width(head_dim, codes))
        ours = layout.zeros(shape, dtype=torch.uint8, device=CPU)
        twin = torch.zeros(shape, dtype=torch.uint8)
        place = CpuHeads(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dim=8,
            dtype=dtype,
            codes=codes,
        )
        place(heads, angles.cos, angles.sin, slots, ours)
        put(heads[:, num_heads:], slots, twin, codes)
        whole = torch.ones(num, dtype=torch.bool)
        whole[slots[5:7]] = False
        assert torch.equal(ours.flatten(0, 1)[whole], twin.flatten(0, 1)[whole])
        back = [
            codes.decode(pages.flatten(0, 1)[slots[5:7]], torch.float32) for pages in (ours, twin)
        ]
        assert torch.equal(back[0].isnan(), back[1].isnan())
        assert back[0][:, 1, 1].isnan().all() and back[0][:, 0].isfinite().all()
