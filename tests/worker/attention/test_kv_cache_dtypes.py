"""Attention over pages of codes: in every backend that over the numbers they stand for."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.config import Config
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.kernels.kv_codes import CODES, KVCodes
from baton_worker.platform import machine

CPU = torch.device("cpu")
RUNS_HERE = [level for level in LEVELS if level.needs <= machine.instructions()]
ROWS = [(1, 30), (50, 0), (1, 200), (4, 9), (20, 300), (1, 3)]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@pytest.fixture(params=[*RUNS_HERE, "grouped", "reference"], ids=lambda p: getattr(p, "name", p))
def backend(request: pytest.FixtureRequest) -> Any:
    if not isinstance(request.param, IsaLevel):
        return {"grouped": GroupedBackend, "reference": ReferenceBackend}[request.param]()
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    builder = Builder("", Config.load().cache_dir / "kernels")
    return CpuBackend(ctypes.CDLL(str(builder.library("attention", request.param))))


@pytest.fixture(
    params=[
        pytest.param(CODES["fp8"], id="fp8", marks=pytest.mark.row("F12.05")),
        pytest.param(CODES["int8"], id="int8", marks=pytest.mark.row("F12.06")),
    ]
)
def codes(request: pytest.FixtureRequest) -> KVCodes:
    made: KVCodes = request.param
    return made


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def attend(backend: Any, problem: Any, call: Any, pages: torch.Tensor) -> torch.Tensor:
    assert backend.refuses(call) is None
    result: torch.Tensor = backend.forward(backend.plan(problem.batch, call), problem.query, pages)
    return result


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_codes_are_read_as_the_numbers_they_stand_for(
    backend: Any, problem: Any, codes: KVCodes, dtype: torch.dtype
) -> None:
    for head_dim, features in product(
        [1, 8, 64, 80, 128], [{}, {"window": 70}, {"chunk": 50}, {"softcap": 3.0}]
    ):
        given = problem(ROWS, heads=(6, 2), head_dim=head_dim, page_size=16, dtype=dtype)
        plain = replace(given.call, **features)
        kept = codes.encode(given.pages)
        ours = attend(backend, given, replace(plain, codes=codes), kept)
        expected = attend(backend, given, plain, codes.decode(kept, dtype))
        assert ours.dtype is dtype and ours.isfinite().all()
        if dtype is torch.float32:
            assert torch.equal(ours, expected)
        else:  # Kernels without bfloat16 arithmetic do not round the numbers of a code to it.
            torch.testing.assert_close(ours, expected, rtol=0.0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("level", RUNS_HERE, ids=lambda level: level.name)
def test_a_token_has_the_same_bits_in_every_batch_chunk_and_thread(
    problem: Any, codes: KVCodes, dtype: torch.dtype, level: IsaLevel, threads: None
) -> None:
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    builder = Builder("", Config.load().cache_dir / "kernels")
    backend = CpuBackend(ctypes.CDLL(str(builder.library("attention", level))))
    given = problem([(600, 0)], heads=(9, 3), head_dim=64, page_size=16, dtype=dtype)
    call, kept = replace(given.call, codes=codes), codes.encode(given.pages)
    whole = attend(backend, given, call, kept)

    def run(*rows: tuple[int, int]) -> torch.Tensor:
        counts, starts = zip(*rows, strict=True)
        table = given.batch.block_table.numpy().repeat(len(rows), 0)
        batch = AttentionBatch.build(counts, starts, table, 16, CPU)
        query = torch.cat([given.query[start : start + count] for count, start in rows])
        return attend(backend, replace(given, batch=batch, query=query), call, kept)

    for number in (1, 2):
        torch.set_num_threads(number)
        for size in (333, 64, 7):
            chunks = [run((min(size, 600 - s), s)) for s in range(0, 600, size)]
            assert torch.equal(torch.cat(chunks), whole), (number, size)
        positions = range(0, 600, 13)
        assert torch.equal(run(*[(1, p) for p in positions]), whole[:: positions.step])


def test_a_broken_key_shows(backend: Any, problem: Any, codes: KVCodes) -> None:
    given = problem([(1, 100), (1, 50)], page_size=16)
    given.pages[given.batch.block_table[0, 3], 5, 0, :, 2] = float("nan")
    out = attend(backend, given, replace(given.call, codes=codes), codes.encode(given.pages))
    assert out[0].isnan().all() and out[1].isfinite().all()


def test_latents_in_codes_are_refused_by_all(problem: Any, codes: KVCodes) -> None:
    call = replace(problem([(1, 1)]).call, latent=True, num_kv_heads=1, codes=codes)
    with pytest.raises(ModelError, match=f"{codes} latents"):
        AttentionSelector().select(call)
