"""The C++ product against its plain twin, and the same bits for a row in any company."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.isa import IsaLevel
from baton_worker.kernels.cpu.linear import CpuLinear, join
from baton_worker.kernels.linear import PlainLinear
from baton_worker.kernels.quantized_weights import BlockQuantized
from tests.support.worker.random_products import (
    some,
    some_blocks,
)

pytestmark = pytest.mark.skipif(library("linear") is None, reason="no C++ compiler here")

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads; what it was comes back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(96, 72), (33, 7), (1, 1), (130, 65)])
def test_equals_plain(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    for rows in (0, 1, 2, 11, 13, 40, 500):
        for extras in (False, True):
            assert_equals_plain(dtype, shape, rows, extras)


def assert_equals_plain(
    dtype: torch.dtype, shape: tuple[int, int], rows: int, extras: bool
) -> None:
    columns, depth = shape
    weight = some(columns, depth, dtype=dtype) / depth**0.5
    bias = some(columns, dtype=dtype, seed=1) if extras else None
    x = some(rows, depth, dtype=dtype, seed=2)
    residual = some(rows, columns, dtype=dtype, seed=3) if extras else None
    packed = CpuLinear(weight, bias)(x, residual)
    # The twin in float64: the kernel rounds once, at the end.
    precise = PlainLinear(weight.double(), None if bias is None else bias.double())
    plain = precise(x.double(), None if residual is None else residual.double())
    assert packed.dtype is dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(packed.double(), plain, rtol=tolerance / 2, atol=tolerance)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [40, 64, 7])
def test_gate_equals_plain(gate: str, dtype: torch.dtype, size: int) -> None:
    weight, bias = some(2 * size, 24, dtype=dtype), some(2 * size, dtype=dtype, seed=1)
    x = some(19, 24, dtype=dtype, seed=2)
    halves = PlainLinear(weight.double(), bias.double())(x.double()).chunk(2, -1)
    expected = GATES[gate](halves[0]) * halves[1]
    fused = CpuLinear(weight, bias, gate=gate)(x)
    assert fused.shape == (19, size)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(fused.double(), expected, rtol=tolerance, atol=tolerance)


def test_extreme_gates_are_finite() -> None:
    weight = torch.tensor([[1.0], [1.0]])
    x = torch.tensor([[-1e30], [-100.0], [0.0], [100.0]])
    for gate, function in GATES.items():
        expected = function(x) * x
        torch.testing.assert_close(CpuLinear(weight, None, gate=gate)(x), expected)


@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_row_has_the_same_bits_in_any_company(
    dtype: torch.dtype, gate: str | None, threads: Callable[[int], None]
) -> None:
    columns, depth = 200, 144
    linear = CpuLinear(some(columns, depth, dtype=dtype), some(columns, dtype=dtype), gate=gate)
    x = some(70, depth, dtype=dtype, seed=4)
    residual = some(70, columns, dtype=dtype, seed=5) if gate is None else None
    threads(1)
    alone = [
        linear(x[r : r + 1], None if residual is None else residual[r : r + 1]) for r in range(70)
    ]
    expected = torch.cat(alone)
    for count in (1, 2, 3):
        threads(count)
        for rows in range(1, 71):
            last = slice(70 - rows, 70)
            together = linear(x[last], None if residual is None else residual[last])
            assert torch.equal(together, expected[last]), f"{rows} rows, {count} threads"


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_equal_their_dequantised_twin(kind: str) -> None:
    for dtype in TOLERANCES:
        for gate in (None, "silu"):
            assert_blocks_equal_their_dequantised_twin(kind, dtype, gate)


def assert_blocks_equal_their_dequantised_twin(
    kind: str, dtype: torch.dtype, gate: str | None
) -> None:
    blocks, x = some_blocks(kind, 70, 512), some(40, 512, dtype=dtype, seed=2) / 512**0.5
    bias = some(70, dtype=dtype, seed=3)
    plain = PlainLinear(blocks.dequantise().double(), bias.double())(x.double())
    if gate is not None:
        plain = GATES[gate](plain[:, :35]) * plain[:, 35:]
    packed = CpuLinear(blocks, bias, gate=gate, dtype=dtype, out_dtype=torch.float32)(x)
    # The levels of nf4 are no bfloat16 numbers: such a product rounds them.
    error = 1e-4 if kind == "nf4" and dtype is torch.bfloat16 else 1e-5
    largest = float(plain.abs().max())
    torch.testing.assert_close(packed.double(), plain, rtol=0, atol=error * largest)


def test_inputs_of_any_size_keep_their_precision() -> None:
    """Groups of huge values, of tiny ones and of zeros; what is no number is not hidden."""
    blocks, x = some_blocks("int8", 40, 128), some(3, 128, dtype=torch.bfloat16, seed=5)
    x[0] *= 2.0**100
    x[1, :32], x[1, 32:64], x[1, 64:96] = x[1, :32] * 2.0**-90, 0, x[1, 64:96] * 2.0**90
    x[2, 64] = float("nan")
    packed = CpuLinear(blocks, None, dtype=torch.bfloat16, out_dtype=torch.float32)(x).double()
    plain = x.double() @ blocks.dequantise().double().T
    torch.testing.assert_close(packed[:2], plain[:2], rtol=1e-3, atol=0)
    assert packed[2].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_row_times_blocks_has_the_same_bits_in_any_company(
    kind: str, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    linear = CpuLinear(some_blocks(kind, 200, 512), None, dtype=dtype)
    x = some(70, 512, dtype=dtype, seed=4)
    threads(1)
    expected = torch.cat([linear(x[row : row + 1]) for row in range(70)])
    for count in (1, 2):
        threads(count)
        for rows in range(1, 71):
            last = slice(70 - rows, 70)
            assert torch.equal(linear(x[last]), expected[last]), f"{rows} rows, {count} threads"


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_parts_of_several_kinds_are_one_result(dtype: torch.dtype) -> None:
    parts = [some_blocks(kind, columns, 256) for kind, columns in (("int8", 40), ("int6_super", 7))]
    bias, x = some(47, dtype=dtype), some(9, 256, dtype=dtype, seed=1)
    residual = some(9, 47, dtype=dtype, seed=2)
    joined = join(parts, bias, dtype, torch.float32)(x, residual)
    weight = torch.cat([part.dequantise() for part in parts])
    plain = PlainLinear(weight.double(), bias.double())(x.double(), residual.double())
    torch.testing.assert_close(joined.double(), plain, rtol=1e-4, atol=1e-3)


def test_rows_that_are_not_whole_groups_are_refused() -> None:
    blocks = some_blocks("int8", 4, 64)
    odd = BlockQuantized("int8", blocks.codes[:, :40], blocks.scales)
    assert "groups of 32" in str(CpuLinear.refuses(odd))
    half = torch.zeros(1, dtype=torch.float16)
    assert "float16" in str(CpuLinear.refuses(blocks, half))


def test_rows_of_the_weight_come_back() -> None:
    for dtype in TOLERANCES:
        weight = some(70, 33, dtype=dtype)
        linear = CpuLinear(weight, None)
        numbers = torch.tensor([0, 69, 31, 32, 31])
        assert torch.equal(linear.rows(numbers), weight[numbers])


@pytest.mark.slow
def test_every_level_that_runs_here_is_right(at_every_level: IsaLevel) -> None:
    for dtype in TOLERANCES:
        assert_equals_plain(dtype, (130, 65), 13, True)
        for gate in GATES:
            test_gate_equals_plain(gate, dtype, 40)
        for kind in KINDS:
            assert_blocks_equal_their_dequantised_twin(kind, dtype, None)
        linear, x = CpuLinear(some(70, 65, dtype=dtype), None), some(20, 65, dtype=dtype, seed=1)
        assert torch.equal(linear(x), torch.cat([linear(x[r : r + 1]) for r in range(20)]))
        for kind in ("int8", "int5"):
            linear, x = (
                CpuLinear(some_blocks(kind, 70, 512), None, dtype=dtype),
                some(20, 512, dtype=dtype),
            )
            expected = torch.cat([linear(x[r : r + 1]) for r in range(20)])
            for rows in (7, 9, 20):
                assert torch.equal(linear(x[:rows]), expected[:rows])


def test_few_columns_share_rows_among_threads(threads: Callable[[int], None]) -> None:
    linear, x = CpuLinear(some(8, 512), None), some(300, 512, seed=1)
    threads(1)
    expected = linear(x)
    threads(4)
    assert torch.equal(linear(x), expected)


def test_float32_results_are_not_rounded() -> None:
    weight, x = some(50, 64, dtype=torch.bfloat16), some(3, 64, dtype=torch.bfloat16, seed=1)
    y = CpuLinear(weight, None, out_dtype=torch.float32)(x)
    assert y.dtype is torch.float32
    torch.testing.assert_close(y, x.float() @ weight.float().T)


def test_residual_is_added_before_rounding() -> None:
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    step = torch.full((1, 1), 2.0**-8, dtype=torch.bfloat16)
    # 1 + 3 * 2^-8 rounded at once is 1 + 2^-6; rounded twice it would be 1 + 2^-7.
    linear = CpuLinear(one, step)
    assert linear(step * 2, one).item() == 1 + 2.0**-6


def test_residual_is_not_overwritten() -> None:
    stream = torch.ones(2, 4)
    CpuLinear(torch.eye(4), None)(torch.ones(2, 4), stream)
    assert (stream == 1).all()


def test_strided_and_stacked_inputs() -> None:
    wide, weight = some(5, 16), some(3, 8, seed=1)
    linear = CpuLinear(weight, None)
    torch.testing.assert_close(linear(wide[:, 4:12]), wide[:, 4:12] @ weight.T)
    torch.testing.assert_close(linear(wide[:, ::2]), wide[:, ::2] @ weight.T)
    stacked = some(2, 3, 8, seed=2)
    residual = some(2, 3, 3, seed=3)
    torch.testing.assert_close(linear(stacked, residual), stacked @ weight.T + residual)


def test_not_a_number_stays_in_its_row() -> None:
    x = some(13, 8)
    x[5, 3] = float("nan")
    y = CpuLinear(some(4, 8, seed=1), None)(x)
    assert y[5].isnan().all() and y[:5].isfinite().all() and y[6:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float16])
def test_other_dtypes_are_refused_with_a_reason(dtype: torch.dtype) -> None:
    assert "no torch." in str(CpuLinear.refuses(torch.zeros(2, 2, dtype=dtype)))


def test_callers_on_several_threads_share_one_team(threads: Callable[[int], None]) -> None:
    kernel, x = CpuLinear(some(2048, 512), None), some(17, 512, seed=1)
    threads(1)
    expected = kernel(x)

    def call(number: int) -> bool:
        torch.set_num_threads(number)
        return all(torch.equal(kernel(x), expected) for _ in range(100))

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(call, (1, 2, 3, 4)))


def test_a_child_without_helpers_does_their_work(threads: Callable[[int], None]) -> None:
    kernel, x = CpuLinear(some(2048, 512), None), some(17, 512, seed=1)
    threads(3)
    wanted = kernel(x).numpy().tobytes()
    child = os.fork()
    if child == 0:
        # Bytes, not torch.equal: OpenMP does not survive a fork.
        os._exit(0 if kernel(x).numpy().tobytes() == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0
