"""The C++ backend against the reference, and against itself bit by bit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.config import Config
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.platform import machine

CPU = torch.device("cpu")
RUNS_HERE = [level for level in LEVELS if level.needs <= machine.instructions()]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}

CASES = {
    "decode alone": [(1, 30)],
    "decode over partitions": [(1, 700)],
    "decode, ragged": [(1, 0), (1, 7), (1, 130), (1, 31), (1, 500)],
    "drafts": [(3, 17), (3, 40), (5, 400)],
    "prefill": [(70, 0)],
    "prefill of more than a partition": [(300, 0)],
    "prefill chunk after a prefix": [(200, 61)],
    "mixed": [(1, 30), (50, 0), (1, 200), (4, 9), (20, 13), (1, 3)],
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window of one": {"window": 1},
    "window": {"window": 70},
    "chunks": {"chunk": 50},
    "soft cap": {"softcap": 3.0},
    "ALiBi in a window": {"slopes": (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01), "window": 100},
    "sinks": {"sinks": True},
    "sinks of each token": {"token_sinks": True},
}


@pytest.fixture(scope="module", params=RUNS_HERE, ids=lambda level: level.name)
def kernels(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """Builds for every level that this machine can run."""
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    level: IsaLevel = request.param
    config = Config.load()
    return ctypes.CDLL(str(Builder("", config.cache_dir / "kernels").library("attention", level)))


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def attend(backend: Any, problem: Any, call: AttentionSpec) -> torch.Tensor:
    assert backend.refuses(call) is None
    plan = backend.plan(problem.batch, call)
    sinks = None
    if call.sinks or call.token_sinks:
        shape = problem.query.shape[1 - call.token_sinks : 2]
        sinks = torch.linspace(-1, 2, shape.numel()).view(shape).to(problem.query.dtype)
    result: torch.Tensor = backend.forward(plan, problem.query, problem.pages, sinks)
    return result


def difference(kernels: ctypes.CDLL, problem: Any, **features: Any) -> float:
    """Largest absolute difference to the reference."""
    call = replace(problem.call, **features)
    ours = attend(CpuBackend(kernels), problem, call)
    reference = attend(ReferenceBackend(), problem, call)
    assert ours.shape == reference.shape and ours.dtype is reference.dtype
    return float((ours.float() - reference.float()).abs().max())


@pytest.mark.row("F04.02")
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_matches_the_reference(
    kernels: ctypes.CDLL, problem: Any, features: dict[str, Any], dtype: torch.dtype
) -> None:
    for rows in CASES.values():
        given = problem(rows, heads=(6, 2), head_dim=16, dtype=dtype)
        assert difference(kernels, given, **features) < TOLERANCES[dtype]


@pytest.mark.row("F04.02", "F04.12")
def test_any_number_of_query_heads_per_key_head(kernels: ctypes.CDLL, problem: Any) -> None:
    for group in range(1, 17):
        given = problem([(1, 90), (40, 0), (30, 300)], heads=(2 * group, 2), head_dim=32)
        assert difference(kernels, given) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_any_head_and_page_size(kernels: ctypes.CDLL, problem: Any, dtype: torch.dtype) -> None:
    for head_dim, page_size in product([1, 8, 40, 64, 80, 96, 128, 192, 256], [1, 16, 48]):
        given = problem([(1, 90), (40, 7)], head_dim=head_dim, page_size=page_size, dtype=dtype)
        assert difference(kernels, given) < TOLERANCES[dtype]


@pytest.mark.row("F04.02", "F04.22")
@pytest.mark.parametrize("widths", [(20, 27), (128, 160), (512, 576)], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_latents_are_keys_and_values(
    kernels: ctypes.CDLL, problem: Any, widths: tuple[int, int], dtype: torch.dtype
) -> None:
    for rows in CASES.values():
        given = problem(rows, heads=(9, 1), head_dim=widths[1], page_size=16, dtype=dtype)
        given = replace(given, pages=given.pages[:, :, :1])
        assert difference(kernels, given, latent=True, value_dim=widths[0]) < TOLERANCES[dtype]


@pytest.mark.row("F04.02", "F04.26")
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_chosen_keys_are_pages_of_one_token_in_wider_rows(
    kernels: ctypes.CDLL, problem: Any, dtype: torch.dtype
) -> None:
    given = problem([(1, 299), (1, 299)], heads=(9, 1), head_dim=60, page_size=1, dtype=dtype)
    features = {"latent": True, "value_dim": 33, "most_keys": 300}
    narrow = replace(given, query=given.query[..., :47].contiguous(), pages=given.pages[:, :, :1])
    narrow = replace(narrow, call=replace(given.call, head_dim=47), pages=narrow.pages[..., :47])
    assert not narrow.pages.is_contiguous()
    assert difference(kernels, narrow, **features) < TOLERANCES[dtype]


@dataclass(frozen=True)
class Sequence:
    """One sequence whose tokens are run in different ways."""

    call: AttentionSpec
    query: torch.Tensor
    pages: torch.Tensor
    table: list[int]
    kernels: ctypes.CDLL
    page_size: int = 16

    LENGTH = 700

    @classmethod
    def make(cls, call: AttentionSpec, kernels: ctypes.CDLL) -> Sequence:
        generator = torch.Generator().manual_seed(call.num_heads)
        shape = (60, 16, 2, call.num_kv_heads, call.head_dim)
        query = (cls.LENGTH, call.num_heads, call.head_dim)
        return cls(
            call,
            torch.randn(query, generator=generator).to(call.dtype),
            torch.randn(shape, generator=generator).to(call.dtype),
            torch.randperm(60, generator=generator).tolist(),
            kernels,
        )

    def run(self, *rows: tuple[int, int]) -> list[torch.Tensor]:
        """The results of rows (count, start), each as if it were a sequence of its own."""
        counts, starts = zip(*rows, strict=True)
        batch = AttentionBatch.build(counts, starts, [self.table] * len(rows), self.page_size, CPU)
        query = torch.cat([self.query[start : start + count] for count, start in rows])
        backend = CpuBackend(self.kernels)
        assert backend.refuses(self.call) is None
        out = backend.forward(backend.plan(batch, self.call), query, self.pages)
        return list(out.split(list(counts)))

    def in_pages_of(self, size: int) -> Sequence:
        """The same memory in smaller pages."""
        parts = self.page_size // size
        table = [page * parts + part for page in self.table for part in range(parts)]
        pages = self.pages.view(-1, size, *self.pages.shape[2:])
        return replace(self, pages=pages, table=table, page_size=size)

    def in_chunks(self, size: int) -> torch.Tensor:
        """All tokens, chunk after chunk."""
        starts = range(0, self.LENGTH, size)
        return torch.cat([self.run((min(size, self.LENGTH - s), s))[0] for s in starts])


@pytest.mark.row("F04.02")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (5, 1)], ids=["gqa", "mha", "mqa"])
def test_a_token_has_the_same_bits_in_every_batch_chunk_and_thread(
    kernels: ctypes.CDLL, dtype: torch.dtype, heads: tuple[int, int], threads: None
) -> None:
    for window in [None, 100, 300]:
        call = AttentionSpec(*heads, 64, 0.125, window, dtype, CPU)
        sequence = Sequence.make(call, kernels)
        whole = sequence.in_chunks(Sequence.LENGTH)
        for number in (1, 2):
            torch.set_num_threads(number)
            for size in (Sequence.LENGTH, 333, 64, 7):
                assert torch.equal(sequence.in_chunks(size), whole), (number, size)
            positions = range(0, Sequence.LENGTH, 13)
            decoded = torch.cat(sequence.run(*[(1, position) for position in positions]))
            assert torch.equal(decoded, whole[:: positions.step]), number
            for position in (0, 63, 64, 255, 256, 257, 699):
                assert torch.equal(sequence.run((1, position))[0][0], whole[position])
            mixed = sequence.run((1, 640), (250, 300), (3, 5), (1, 0))
            for part, (count, start) in zip(
                mixed, ((1, 640), (250, 300), (3, 5), (1, 0)), strict=True
            ):
                assert torch.equal(part, whole[start : start + count])


@pytest.mark.row("F04.02")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [48, 64])
def test_a_token_has_the_same_bits_however_its_keys_are_paged(
    kernels: ctypes.CDLL, dtype: torch.dtype, head_dim: int
) -> None:
    call = AttentionSpec(6, 2, head_dim, 0.125, None, dtype, CPU)
    sequence = Sequence.make(call, kernels)
    rows = ((1, 640), (100, 300), (4, 5), (1, 15))
    expected = sequence.run(*rows)
    for size in (1, 4, 8):
        found = sequence.in_pages_of(size).run(*rows)
        assert all(map(torch.equal, found, expected)), size


def test_what_is_in_a_page_beyond_the_sequence_does_not_matter(
    kernels: ctypes.CDLL, problem: Any
) -> None:
    given = problem([(1, 100), (30, 11)], page_size=16)
    clean = attend(CpuBackend(kernels), given, given.call)
    written = torch.zeros(len(given.pages) * 16, dtype=torch.bool)
    for row, length in enumerate(given.batch.seq_lens.tolist()):
        for position in range(length):
            page = int(given.batch.block_table[row, position // 16])
            written[page * 16 + position % 16] = True
    given.pages.flatten(0, 1)[~written] = float("nan")
    assert torch.equal(attend(CpuBackend(kernels), given, given.call), clean)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_broken_key_or_query_shows(
    kernels: ctypes.CDLL, problem: Any, dtype: torch.dtype
) -> None:
    given = problem([(1, 100), (1, 50)], page_size=16, dtype=dtype)
    given.pages[given.batch.block_table[0, 3], 5, 0] = float("nan")
    out = attend(CpuBackend(kernels), given, given.call)
    assert out[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": torch.device("cuda")}, "cuda"),
        ({"dtype": torch.float16}, "float16"),
        ({"dtype": torch.float8_e4m3fn}, "float8"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, change: dict[str, Any], said: str
) -> None:
    call = replace(problem([(1, 1)]).call, **change)
    assert said in str(CpuBackend().refuses(call))


def test_a_feature_that_the_kernel_does_not_know_is_refused(problem: Any) -> None:
    @dataclass(frozen=True, slots=True)
    class Newer(AttentionSpec):
        gravity: float = 0.0

    call = problem([(1, 1)]).call
    known = {name: getattr(call, name) for name in AttentionSpec.__slots__}
    assert CpuBackend().refuses(Newer(**known, gravity=9.8)) == "it does not know gravity"
