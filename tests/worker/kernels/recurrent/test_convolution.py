"""Convolutions over pages, in C++ and in torch, against torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.convolution import (
    Activation,
    Before,
    CpuConvolution,
    Kernel,
    Places,
    PlainConvolution,
    Weights,
    choose,
    put,
)
from baton_worker.layers import invariant
from baton_worker.layers.ssm.short_conv import Earlier

pytestmark = [pytest.mark.usefixtures("seeded"), pytest.mark.row("F07.03", "F07.12")]
CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
SILU = Activation(invariant.SILU, silu=True)


@pytest.fixture
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(params=["plain", "cpu"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Makes a kernel for pages of a dtype."""
    weights = Weights(torch.zeros(1, 1), None)
    if request.param == "plain":
        return lambda weights, places, activation, dtype: PlainConvolution(
            weights, places, activation
        )
    if (reason := CpuConvolution.refuses(weights, SILU, torch.float32)) is not None:
        pytest.skip(reason)
    return CpuConvolution


def expected(x: Tensor, weights: Weights, activation: Activation) -> Tensor:
    """A whole text [T, channels] at once, in float64 but for what is rounded."""
    taps, channels = weights.taps.shape
    padded = F.pad(x.double().T, (taps - 1, 0))[None]
    bias = None if weights.bias is None else weights.bias.double()
    kernel = weights.taps.double().T[:, None]
    mixed = F.conv1d(padded, kernel, bias, groups=channels)[0].T.to(x.dtype)
    if activation.function is None:
        return mixed
    return activation.function(mixed.double()).to(x.dtype)


def before(count: int, start: int, table: list[int], page_size: int, taps: int) -> Before:
    batch = AttentionBatch.build([count], [start], [table], page_size, CPU)
    earlier = Earlier.of(batch, taps)
    return Before(batch.slot_mapping, earlier.slots, earlier.missing)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize(("channels", "first", "tail"), [(6, 6, 0), (40, 7, 3), (32, 0, 16)])
def test_a_text_in_chunks_is_convolved_and_kept(
    kind: Any, dtype: torch.dtype, taps: int, channels: int, first: int, tail: int
) -> None:
    """In pages that are parts of something larger, with rows that are parts of wider ones."""
    for activation, chunk in product([Activation(), SILU], [1, 5, 23]):
        weights = Weights(torch.randn(taps, channels), torch.randn(channels) if tail else None)
        x = torch.randn(23, channels + tail + 5).to(dtype)[:, 2 : 2 + channels + tail]
        width, at = channels + 4 + channels - first + tail, channels + 4
        memory = torch.zeros(8, 4 * width + 9).to(dtype)
        pages = memory[:, 9:].unflatten(1, (4, 1, 1, width))
        kernel: Kernel = kind(weights, Places(first, tail, at), activation, dtype)
        table = [7, 1, 5, 0, 3, 2]
        # A part of the tail may come by itself.
        begin, rest = x.tensor_split((channels + tail // 2,), dim=1)
        parts = [
            kernel(
                begin[a : a + chunk],
                before(len(x[a : a + chunk]), a, table, 4, taps),
                pages,
                rest[a : a + chunk],
            )
            for a in range(0, 23, chunk)
        ]
        whole = expected(x[:, :channels], weights, activation)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        mixed = torch.cat(parts)
        torch.testing.assert_close(mixed, whole, rtol=tolerance, atol=tolerance)
        rows = pages[table].flatten(0, 1)[:23, 0, 0]
        assert torch.equal(rows[:, :channels], x[:, :channels])
        assert torch.equal(rows[:, at : at + channels - first], mixed[:, first:])
        assert torch.equal(rows[:, at + channels - first :], x[:, channels:])
        assert not memory[:, :9].any() and not memory[[4, 6]].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_depend_on_no_other_token(kind: Any, dtype: torch.dtype) -> None:
    weights, x = Weights(torch.randn(4, 24), torch.randn(24)), torch.randn(40, 24).to(dtype)
    kernel = kind(weights, Places(24), SILU, dtype)
    table = list(range(10))

    def run(cuts: list[int]) -> Tensor:
        pages = torch.zeros(10, 4, 1, 1, 24, dtype=dtype)
        pairs = zip([0, *cuts], [*cuts, 40], strict=True)
        return torch.cat([kernel(x[a:b], before(b - a, a, table, 4, 4), pages) for a, b in pairs])

    assert torch.equal(run([]), run([1, 2, 16, 33]))


def test_what_is_missing_is_not_read(kind: Any) -> None:
    """A page holds anything before its first token, and so does the page of nobody."""
    weights = Weights(torch.randn(3, 8), None)
    kernel, x = kind(weights, Places(8), Activation(), torch.float32), torch.randn(3, 8)
    pages = torch.full((2, 4, 1, 1, 8), float("nan"))
    out = kernel(x, before(3, 0, [1], 4, 3), pages)
    torch.testing.assert_close(out, expected(x, weights, Activation()))


def test_the_twin_serves_where_the_kernel_does_not() -> None:
    weights = Weights(torch.randn(3, 8), None)
    other = Activation(F.gelu)
    assert isinstance(choose(weights, Places(8), other, torch.float32), PlainConvolution)
    assert "no torch.float16" in str(CpuConvolution.refuses(weights, SILU, torch.float16))
    away = Weights(torch.zeros(3, 8, device="meta"), None)
    assert "not on the CPU" in str(CpuConvolution.refuses(away, SILU, torch.float32))


def test_parts_are_put_side_by_side() -> None:
    """Into pages that are parts of something larger."""
    for dtype in DTYPES:
        pages = torch.zeros(3, 4, 1, 1, 12, dtype=dtype)
        part, other = torch.randn(5, 9).to(dtype)[:, 2:6], torch.randn(5, 3).to(dtype)
        slots = torch.tensor([9, 0, 3, 11, 4])
        put(pages[..., 5:], slots, part, other)
        rows = pages.view(12, 12)
        assert rows[slots, 5:12].equal(torch.cat((part, other), 1)) and not rows[:, :5].any()
        assert not rows[[1, 2, 5, 6, 7, 8, 10]].any()
