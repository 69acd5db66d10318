"""Tiles are tried before they are used; their products, by instructions in software and, where
there are some, by those of the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_worker.kernels import cpu
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.cpu import amx, library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.platform.machine import instructions
from tests.support.worker.random_products import some, some_blocks
from tests.worker.kernels.cpu.conftest import IN_SOFTWARE, run_at

AMX = LEVELS[0]
needs_compiler = pytest.mark.skipif(library("linear") is None, reason="no C++ compiler here")
needs_vectors = pytest.mark.skipif(
    not IN_SOFTWARE.needs <= instructions(), reason="this CPU has no AVX512-BF16"
)
ROWS = [1, 2, 15, 16, 17, 31, 32, 33, 49, 64, 97, 300]


@pytest.fixture(params=[IN_SOFTWARE, AMX], ids=lambda level: level.name)
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The kernels that multiply tiles."""
    level: IsaLevel = request.param
    library("linear")
    assert cpu._builder is not None
    if level.has_tiles and cpu.supported_level(cpu._builder) is not level:
        pytest.skip("this CPU has no AMX")
    run_at(level, monkeypatch)
    return ctypes.CDLL(str(cpu._builder.library("linear", level)))


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def by_tiles(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T in the order of the manual: even and odd k of a tile apart, then both onto the sum."""
    sums = torch.zeros(len(x), len(weight))
    for first in range(0, x.shape[1], 32):
        some_x, some_w = x[:, first : first + 32].double(), weight[:, first : first + 32].double()
        parts = []
        for odd in (0, 1):
            part = torch.zeros(len(x), len(weight))
            for k in range(odd, some_x.shape[1], 2):
                # Products of two bfloat16 are exact in float64, and so is a sum with a float32.
                product = some_x[:, k, None] * some_w[None, :, k]
                part = (part.double() + product).float()
            parts.append(part)
        sums = sums + (parts[0] + parts[1])
    return sums


@needs_compiler
@needs_vectors
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("shape", [(70, 96), (33, 449), (5, 7), (40, 520)])
def test_sums_are_those_of_the_manual(
    products: ctypes.CDLL, shape: tuple[int, int], compact: bool
) -> None:
    weight = some(*shape, dtype=torch.bfloat16)
    linear = CpuLinear(weight, None, out_dtype=torch.float32, compact=compact)
    for rows in ROWS:
        x = some(rows, shape[1], dtype=torch.bfloat16, seed=rows)
        assert torch.equal(linear(x), by_tiles(x, weight)), f"{rows} rows"


@needs_compiler
@needs_vectors
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_row_has_the_same_bits_in_any_company(products: ctypes.CDLL, kind: str | None) -> None:
    # The longest batch of the plain weight is more than fits the cache at once.
    depth = 2048 if kind is None else 512
    weight = some(40, depth, dtype=torch.bfloat16) if kind is None else some_blocks(kind, 40, depth)
    linear = CpuLinear(weight, None, dtype=torch.bfloat16)
    x = some(max(ROWS), depth, dtype=torch.bfloat16, seed=4)
    expected = linear(x)
    for rows in ROWS:
        assert torch.equal(linear(x[-rows:]), expected[-rows:]), f"{rows} rows"


@needs_compiler
@needs_vectors
@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
def test_nor_do_very_small_numbers_change_a_bit(products: ctypes.CDLL, kind: str) -> None:
    """A tile takes what has no whole mantissa for zero; vectors, which one row may take, do not."""
    blocks = some_blocks(kind, 40, 512)
    linear = CpuLinear(blocks, None, dtype=torch.bfloat16, out_dtype=torch.float32)
    x = (some(3, 512, seed=2) * 2.0**-124).bfloat16()
    x[1] *= 2.0**4
    expected = linear(x)
    assert expected.any()
    for row in range(len(x)):
        assert torch.equal(linear(x[row : row + 1])[0], expected[row])


@needs_compiler
@needs_vectors
@pytest.mark.usefixtures("one_thread")
def test_few_columns_and_one_thread_change_nothing(products: ctypes.CDLL) -> None:
    linear = CpuLinear(some(20, 512, dtype=torch.bfloat16), None)
    x = some(300, 512, dtype=torch.bfloat16, seed=1)
    alone = linear(x)
    torch.set_num_threads(4)
    assert torch.equal(linear(x), alone)


@needs_compiler
@needs_vectors
def test_what_is_no_number_stays_in_its_row(products: ctypes.CDLL) -> None:
    """Past the end of k there are zeros on both sides, whatever lies behind the weight."""
    weight = some(64, 40, dtype=torch.bfloat16)
    x = some(20, 40, dtype=torch.bfloat16, seed=1)
    x[5, 39] = float("inf")
    y = CpuLinear(weight, None, compact=False)(x)
    assert not y[5].isfinite().any() and y[:5].isfinite().all() and y[6:].isfinite().all()


@needs_compiler
@needs_vectors
def test_the_trial_multiplies(products: ctypes.CDLL) -> None:
    products.baton_tiles_are_right.restype = ctypes.c_bool
    assert products.baton_tiles_are_right()


def built(folder: Path, permitted: str, right: str) -> Path:
    """A library whose trial ends like this."""
    compiler = shutil.which("gcc") or shutil.which("cc") or pytest.skip("no C compiler here")
    source, target = folder / "trial.c", folder / "trial.so"
    source.write_text(
        "#include <signal.h>\n#include <stdbool.h>\n"
        f"bool baton_tiles_permitted(void) {{ {permitted}; }}\n"
        f"bool baton_tiles_are_right(void) {{ {right}; }}\n"
    )
    command = [compiler, "-shared", "-fPIC", str(source), "-o", str(target)]
    subprocess.run(command, check=True, timeout=60)
    return target


YES, NO = "return true", "return false"


@pytest.mark.parametrize(
    ("permitted", "right", "reason"),
    [
        (NO, YES, "the system gives no leave"),
        (YES, NO, "sums are wrong"),
        (YES, "raise(SIGILL); return true", "the system ended a product by SIGILL"),
        (YES, YES, None),
    ],
)
def test_a_trial_tells_what_is_wrong(
    tmp_path: Path, permitted: str, right: str, reason: str | None
) -> None:
    assert amx.refuses(built(tmp_path, permitted, right)) == reason


def test_leave_is_asked_for_here_too(tmp_path: Path) -> None:
    """That of the process of the trial ends with it."""
    first = 'static int calls; return getenv("TRIAL") || calls++'
    path = built(tmp_path, f"extern char *getenv(const char *); {first}", YES)
    assert amx.refuses(path) == "the system gives no leave"
    assert amx._permission(path) == "the system gives this process no leave"
    assert amx._permission(path) is None


def test_an_unknown_library_is_no_reason_to_stop(tmp_path: Path) -> None:
    assert "cannot open" in str(amx.refuses(tmp_path / "none.so"))


@pytest.fixture
def listing_amx(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Builder], IsaLevel | None]]:
    """The level of a CPU that lists tiles."""
    monkeypatch.setattr(cpu.machine, "instructions", lambda: AMX.needs)
    cpu.supported_level.cache_clear()
    yield cpu.supported_level
    cpu.supported_level.cache_clear()


@needs_compiler
@pytest.mark.skipif(AMX.needs <= instructions(), reason="this CPU runs them")
def test_listed_and_not_there_is_the_next_level(
    listing_amx: Callable[[Builder], IsaLevel | None],
    unoptimised: Builder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert listing_amx(unoptimised) is LEVELS[1]
    assert "AMX is not used" in caplog.text and "no leave" in caplog.text


@needs_compiler
def test_what_works_is_used(
    listing_amx: Callable[[Builder], IsaLevel | None],
    unoptimised: Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(amx, "refuses", lambda path: None)
    assert listing_amx(unoptimised) is AMX


@needs_compiler
@needs_vectors
def test_a_compiler_without_tiles_builds_the_next_level(
    listing_amx: Callable[[Builder], IsaLevel | None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    older = tmp_path / "older"
    older.write_text(
        '#!/bin/sh\ncase "$*" in *-mamx*) echo "error: unrecognized -mamx" >&2; exit 1;; esac\n'
        'exec c++ "$@" -O0\n'
    )
    older.chmod(0o755)
    assert listing_amx(Builder(str(older), tmp_path / "kernels")) is LEVELS[1]
    assert "AMX is not used" in caplog.text and "unrecognized -mamx" in caplog.text
