"""Weights in twelve bits give the results of the plain ones, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.isa import IsaLevel
from baton_worker.kernels.cpu.linear import CpuLinear

pytestmark = pytest.mark.skipif(library("linear") is None, reason="no C++ compiler here")

ROWS = (1, 2, 5, 8, 12, 13, 40, 400)
SHAPES = ((1, 1), (5, 2), (33, 3), (31, 7), (64, 62), (130, 65), (96, 128), (70, 193))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads; what it was comes back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def some(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def with_exceptions(columns: int, depth: int) -> Tensor:
    """A weight of which about one value in two hundred does not fit into twelve bits, and as many
    are zero or nearly so, which fits."""
    weight = some(columns, depth)
    chosen = torch.rand(columns, depth, generator=torch.Generator().manual_seed(1))
    weight[chosen < 0.005] *= 1e-9
    weight[chosen > 0.995] = -1e-38
    weight[chosen > 0.998] = 0
    return weight


def equal_bits(a: Tensor, b: Tensor) -> bool:
    """Zeros of two signs are not equal, two NaN may be."""
    integer = torch.int16 if a.dtype is torch.bfloat16 else torch.int32
    return torch.equal(a.view(integer), b.view(integer))


def is_compact(linear: CpuLinear) -> bool:
    return linear._compact is not None


def compare(weight: Tensor, rows: int, **options: object) -> None:
    """A product of the compact form with one of the plain form."""
    gated = options.get("gate") is not None
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    bias = some(weight.shape[0], seed=2)
    x = some(rows, weight.shape[1], seed=3)
    residual = None if gated else some(rows, columns, seed=4)
    compact = CpuLinear(weight, bias, compact=True, **options)  # type: ignore[arg-type]
    plain = CpuLinear(weight, bias, compact=False, **options)  # type: ignore[arg-type]
    assert is_compact(compact) and not is_compact(plain)
    assert equal_bits(compact(x), plain(x))
    if residual is not None:
        assert equal_bits(compact(x, residual), plain(x, residual))


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_plain(shape: tuple[int, int]) -> None:
    for rows in ROWS:
        compare(some(*shape), rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("count", [1, 2])
def test_exceptions_are_patched_in(rows: int, count: int, threads: Callable[[int], None]) -> None:
    threads(count)
    weight = with_exceptions(200, 450)
    linear = CpuLinear(weight, None, compact=True)
    assert linear._compact is not None
    found = linear._compact.exceptions
    assert 0.003 * weight.numel() < len(found) < 0.01 * weight.numel()
    compare(weight, rows)
    compare(weight, rows, out_dtype=torch.float32)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_a_gate_equals_plain(gate: str, rows: int) -> None:
    for size in (7, 40, 64):
        compare(with_exceptions(2 * size, 130), rows, gate=gate)


def test_strided_weights_equal_plain() -> None:
    wide = some(40, 300)
    compare(wide[:, 100:230], 3)
    compare(wide[:, ::2], 3)
    compare(wide.T, 3)


def test_columns_of_one_value_equal_plain() -> None:
    """Zero, the smallest denormal, the largest number, and powers of two far apart."""
    weight = some(64, 96)
    weight[0], weight[1], weight[2] = 0, -0.0, 1e-40
    weight[3], weight[4], weight[5] = torch.finfo(torch.bfloat16).max, 2.0**-126, 2.0**100
    for rows in ROWS:
        compare(weight, rows)


def test_what_is_no_number_stays_in_its_column() -> None:
    weight = some(256, 96)
    weight[3, 5], weight[40, 7] = float("nan"), float("inf")
    x = some(9, 96, seed=1)
    linear = CpuLinear(weight, None, compact=True)
    assert is_compact(linear)
    compact, plain = linear(x), CpuLinear(weight, None, compact=False)(x)
    others = [column for column in range(256) if column not in (3, 40)]
    assert equal_bits(compact[:, others], plain[:, others])
    assert compact[:, others].isfinite().all()
    assert compact[:, 3].isnan().all() and not compact[:, 40].isfinite().any()


@pytest.mark.parametrize("columns", [1, 31, 96, 130])
def test_rows_of_the_weight_come_back(columns: int) -> None:
    weight = with_exceptions(columns, 451)
    linear = CpuLinear(weight, None, compact=True)
    assert is_compact(linear)
    numbers = torch.arange(columns).flip(0)
    assert equal_bits(linear.rows(numbers), weight[numbers])
    many = torch.randint(columns, (300,))
    assert equal_bits(linear.rows(many), weight[many])


def test_there_are_no_other_rows() -> None:
    linear = CpuLinear(some(40, 16), None, compact=True)
    assert is_compact(linear)
    found = linear.rows(torch.tensor([-1, 39, 40, 2**40]))
    assert found[[0, 2, 3]].isnan().all() and found[1].isfinite().all()


def test_zeros_fit() -> None:
    weight = some(64, 256)
    weight[torch.rand(64, 256, generator=torch.Generator().manual_seed(1)) < 0.5] = 0
    weight[weight < -1] = -0.0
    compare(weight, 3)


def test_a_weight_whose_exponents_are_all_over_the_range_stays_plain() -> None:
    weight = torch.exp2(30 * some(64, 256).float()).to(torch.bfloat16)
    linear = CpuLinear(weight, None, compact=True)
    assert not is_compact(linear) and linear.nbytes == weight.nbytes
    assert torch.equal(linear.rows(torch.arange(64)), weight)


def test_it_takes_three_quarters_of_the_bytes() -> None:
    weight = some(640, 1024)
    assert 0.75 < CpuLinear(weight, None, compact=True).nbytes / weight.nbytes < 0.76


def test_other_dtypes_are_not_touched() -> None:
    assert not is_compact(CpuLinear(some(40, 16).float(), None, compact=True))


@pytest.mark.slow
def test_every_level_that_runs_here_is_right(at_every_level: IsaLevel) -> None:
    for rows in ROWS:
        compare(with_exceptions(130, 450), rows)
        compare(with_exceptions(2 * 40, 65), rows, gate="silu")
        for shape in SHAPES:
            compare(some(*shape), rows)
    test_rows_of_the_weight_come_back(130)
