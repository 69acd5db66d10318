"""The backend for GPUs against the reference, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from baton_worker.attention import AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.attention.tree_mask import TreeMask
from baton_worker.kernels import triton as kernels
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from tests.fakes.triton_interpreter import interpreter
from tests.worker.attention.conftest import (
    KERNELS,
    both_ways,
    in_parts,
    make_problem,
    over_branches,
)

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 0.02}
ROWS = {
    "decode": [(1, 30), (1, 0), (1, 7)],
    "decode over partitions": [(1, 600), (2, 1030), (1, 5)],
    "prefill": [(70, 0)],
    "mixed": [(1, 30), (50, 0), (1, 520), (4, 9), (20, 13)],
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


LATENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window and sinks": {"window": 70, "sinks": True},
    "in chunks, bent": {"chunk": 50, "softcap": 3.0},
    "all of a key is its value": {"value_dim": None},
}
PARTLY: dict[str, dict[str, Any]] = {
    "plain": {},
    "window and sinks": {"window": 70, "sinks": True},
    "chunks of narrow values": {"chunk": 50, "value_dim": 5},
    "ALiBi, bent": {"softcap": 3.0, "slopes": (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01)},
    "latents": {"latent": True, "num_kv_heads": 1, "value_dim": 5},
}


@pytest.fixture
def problem() -> object:
    """Where the kernels run: on a GPU if there is one."""
    return partial(make_problem, device=KERNELS)


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


def attend(backend: Any, problem: Any, call: AttentionSpec, pages: Any = None) -> torch.Tensor:
    sinks = None
    if call.sinks or call.token_sinks:
        shape = problem.query.shape[1 - call.token_sinks : 2]
        sinks = torch.linspace(-1, 2, shape.numel()).view(shape).to(problem.query)
    pages = problem.pages if pages is None else pages
    plan = backend.plan(problem.batch, call)
    found: torch.Tensor = backend.forward(plan, problem.query, pages, sinks)
    return found


def check(given: Any, **features: Any) -> None:
    call = replace(given.call, **features)
    ours = attend(TritonBackend(), given, call)
    expected = attend(ReferenceBackend(), given, call)
    assert ours.dtype is expected.dtype
    error = (ours.float() - expected.float()).abs().max()
    assert error < TOLERANCES[call.dtype]


@pytest.mark.row("F04.14", "F21.03")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_matches_the_reference(
    problem: Any, rows: list[tuple[int, int]], features: dict[str, Any]
) -> None:
    check(problem(rows, heads=(6, 2), head_dim=16, page_size=16), **features)


@pytest.mark.row("F04.14")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", [{}, {"window": 70, "softcap": 3.0}], ids=str)
def test_short_floats(problem: Any, dtype: torch.dtype, features: dict[str, Any]) -> None:
    check(problem(ROWS["mixed"], heads=(6, 2), head_dim=20, page_size=16, dtype=dtype), **features)


@pytest.mark.row("F04.14")
@pytest.mark.parametrize("heads", [(4, 4), (5, 1), (14, 2), (40, 2), (71, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [1, 80, 256])
def test_any_number_of_heads_and_channels(
    problem: Any, heads: tuple[int, int], head_dim: int
) -> None:
    check(problem([(1, 40), (9, 3)], heads=heads, head_dim=head_dim, page_size=5))


@pytest.mark.row("F04.14")
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("codes", [CODES["int8"], CODES["fp8"].on(torch.device("cuda"))], ids=str)
def test_pages_of_codes_in_either_layout(problem: Any, codes: Any, layout: Layout) -> None:
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=18, page_size=16)
    kept = codes.encode(given.pages)
    pages = layout.zeros(kept.shape, dtype=torch.uint8, device=given.call.device).copy_(kept)
    call = replace(given.call, codes=codes, layout=layout)
    ours = attend(TritonBackend(), given, call, pages)
    expected = attend(ReferenceBackend(), given, call, kept)
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=1e-5)


def latents(
    problem: Any, rows: list[tuple[int, int]], heads: int, *widths: int, **more: Any
) -> Any:
    """Keys of these widths together, of which the first is that of the value."""
    given = problem(rows, heads=(heads, 1), head_dim=sum(widths), page_size=16, **more)
    call = replace(given.call, latent=True, value_dim=widths[0])
    return replace(given, call=call, pages=given.pages[:, :, :1])


@pytest.mark.row("F04.22")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("features", LATENTS.values(), ids=LATENTS.keys())
def test_latents_are_keys_and_values(
    problem: Any, rows: list[tuple[int, int]], features: dict[str, Any]
) -> None:
    check(latents(problem, rows, 6, 20, 7), **features)


@pytest.mark.row("F04.22")
@pytest.mark.parametrize("heads", [1, 5, 16, 20, 40, 128])
def test_programs_share_the_heads_that_one_has_no_room_for(problem: Any, heads: int) -> None:
    check(latents(problem, [(1, 40), (9, 3), (1, 520)], heads, 32, 16))


@pytest.mark.row("F04.22")
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_latents_as_wide_as_those_of_deepseek(problem: Any, dtype: torch.dtype) -> None:
    given = latents(problem, [(1, 40), (3, 520)], 18, 512, 64, dtype=dtype)
    assert given.call.head_dim == 576
    check(given)


@pytest.mark.row("F04.22")
@pytest.mark.parametrize("layout", Layout)
def test_latents_tell_the_log_sum_exp_of_their_scores(problem: Any, layout: Layout) -> None:
    given = latents(problem, ROWS["mixed"], 20, 32, 16)
    call = replace(given.call, partial=True, layout=layout)
    pages = layout.zeros(given.pages.shape, dtype=torch.float32, device=call.device)
    pages.copy_(given.pages)
    sums = list[torch.Tensor]()
    for backend in (TritonBackend(), ReferenceBackend()):
        assert backend.refuses(call) is None
        sums.append(torch.full((len(given.query), 20), torch.nan, device=call.device))
        backend.forward(backend.plan(given.batch, call), given.query, pages, None, sums[-1])
    torch.testing.assert_close(*sums, rtol=0.0, atol=1e-5)


@pytest.mark.row("F04.28")
@pytest.mark.parametrize("features", PARTLY.values(), ids=PARTLY.keys())
def test_parts_of_the_keys_merge_to_the_whole(problem: Any, features: dict[str, Any]) -> None:
    in_parts(TritonBackend(), problem, **features)


@pytest.mark.row("F04.13")
@pytest.mark.parametrize("features", PARTLY.values(), ids=PARTLY.keys())
def test_each_branch_is_attended_as_if_it_were_the_text(
    problem: Any, features: dict[str, Any]
) -> None:
    over_branches(TritonBackend(), problem, **features)


@pytest.mark.row("F04.13")
def test_a_chain_is_ordinary_attention_to_the_last_bit(problem: Any) -> None:
    given = problem([(5, 600), (40, 3), (64, 0)], heads=(6, 2), page_size=16)
    plain = attend(TritonBackend(), given, given.call)
    counts = given.batch.query_lens
    trees = TreeMask.build(counts, [list(range(-1, n - 1)) for n in counts], given.call.device)
    call, batch = replace(given.call, tree=True), replace(given.batch, trees=trees)
    assert torch.equal(attend(TritonBackend(), replace(given, batch=batch), call), plain)


@pytest.mark.row("F04.16")
@pytest.mark.parametrize("value_dim", [3, 20, 40])
@pytest.mark.parametrize("codes", [None, *CODES.values()], ids=str)
def test_values_of_another_width_than_keys(problem: Any, codes: Any, value_dim: int) -> None:
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=24, page_size=16)
    key, value = given.pages[:, :, :1], given.pages[:, :, 1:].repeat(1, 1, 1, 1, 2)
    parts = [key, value[..., :value_dim]]
    kept = torch.cat(parts if codes is None else [codes.encode(part) for part in parts], -1)
    call = replace(given.call, value_dim=value_dim, codes=codes)
    ours = attend(TritonBackend(), given, call, kept)
    expected = attend(ReferenceBackend(), given, call, kept)
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=1e-5)


def test_pages_before_the_window_may_be_replaced_by_the_first_within(problem: Any) -> None:
    """To the last bit, as the other backends do."""
    rows = [(1, 600), (20, 150), (1, 70)]
    given = problem(rows, window=13)
    whole = attend(TritonBackend(), given, given.call)
    table, pages = given.batch.block_table.clone(), given.pages.clone()
    for row, (_, start) in enumerate(rows):
        first = max(0, start - 13) // 4
        pages[table[row, :first].long()] = torch.nan
        table[row, :first] = table[row, first]
    batch = replace(given.batch, block_table=table)
    left = attend(TritonBackend(), replace(given, batch=batch), given.call, pages)
    assert pages.isnan().any() and whole.isfinite().all()
    assert torch.equal(left, whole)


@pytest.mark.row("F12.10")
def test_the_same_bits_over_either_layout(problem: Any) -> None:
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=20, page_size=16)
    pages = Layout.HND.zeros(given.pages.shape, dtype=torch.float32, device=given.call.device)
    call = replace(given.call, layout=Layout.HND)
    ours = attend(TritonBackend(), given, call, pages.copy_(given.pages))
    assert torch.equal(ours, attend(TritonBackend(), given, given.call))


def test_a_rows_bits_do_not_depend_on_its_neighbours(problem: Any) -> None:
    """Nor on whether somebody else's keys need more partitions than its own, or somebody's prompt
    the tile of long rows."""
    rows = [(1, 40), (2, 700), (1, 511), (40, 90)]
    given = problem(rows, heads=(6, 2), head_dim=16, page_size=16)
    counts = [count for count, _ in rows]
    together = attend(TritonBackend(), given, given.call).split(counts)
    for row, (count, start) in enumerate(rows):
        first = sum(counts[:row])
        batch = given.batch.build(
            [count],
            [start],
            given.batch.block_table[row : row + 1].cpu().numpy(),
            16,
            given.call.device,
        )
        alone = replace(given, batch=batch, query=given.query[first : first + count])
        assert torch.equal(attend(TritonBackend(), alone, given.call), together[row])


def test_tiles_of_short_rows_are_launched_apart() -> None:
    from baton_worker.kernels.triton.attention.launch import _tiles

    assert _tiles(16, 64, (1, 4, 1), exact=False) == [(16, (0, 4))]
    assert _tiles(16, 64, (9, 4, 30), exact=False) == [(64, (5, 30))]
    assert _tiles(16, 64, (1, 4, 30), exact=False) == [(16, (0, 4)), (64, (5, 30))]
    assert _tiles(16, 64, (1, 4, 30), exact=True) == [(64, (0, 30))]


def test_a_token_of_exact_attention_has_the_same_bits_decoded_and_in_a_prompt(
    problem: Any,
) -> None:
    for features in ({}, {"window": 600}, {"chunk": 700, "sinks": True}):
        given = problem([(24, 1010)], heads=(6, 2), head_dim=16, page_size=16)
        call, table = replace(given.call, **features), given.batch.block_table.cpu().numpy()
        backend = TritonBackend(exact=True)
        whole = attend(backend, given, call)
        torch.testing.assert_close(whole, attend(TritonBackend(), given, call), rtol=0, atol=1e-5)
        # Across the end of a partition at 1,024.
        for first, count in ((0, 1), (12, 1), (13, 2), (15, 1), (4, 20)):
            batch = given.batch.build([count], [1010 + first], table, 16, given.call.device)
            part = replace(given, batch=batch, query=given.query[first : first + count])
            assert torch.equal(attend(backend, part, call), whole[first : first + count])


@pytest.mark.row("F04.14")
@pytest.mark.parametrize("features", [{}, {"window": 70}, {"chunk": 50, "sinks": True}], ids=str)
def test_the_same_bits_however_many_programs_share_the_partitions(
    problem: Any, features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem([(1, 1600), (2, 1030), (1, 5), (20, 600)], heads=(6, 2), page_size=16)
    call, found = replace(given.call, **features), list[torch.Tensor]()
    for programs in (1, 3, 100):
        module = "baton_worker.kernels.triton.attention.launch"
        monkeypatch.setattr(f"{module}._programs", lambda *_, n=programs: n)
        found.append(attend(TritonBackend(), given, call))
    expected = attend(ReferenceBackend(), given, call)
    torch.testing.assert_close(found[0], expected, rtol=0.0, atol=1e-5)
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_long_rows_have_larger_partitions_and_not_more_of_them(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a captured step has room for rows of any length, and a row the same bits in each."""
    monkeypatch.setattr("baton_worker.kernels.triton.attention.launch.PARTITION", 128)
    monkeypatch.setattr("baton_worker.kernels.triton.attention.launch.MOST_PARTITIONS", 3)
    rows = [(1, 383), (1, 384), (2, 1000)]
    given = problem(rows, heads=(2, 1), head_dim=16, page_size=16)
    counts, lengths = [count for count, _ in rows], [count + start for count, start in rows]
    for features in ({}, {"window": 600, "sinks": True}):
        call, backend = replace(given.call, **features), TritonBackend()
        plan = backend.plan(given.batch, call)
        assert plan.step.partitions == 3 and plan.step.split_tokens == 4
        found = attend(backend, given, call)
        torch.testing.assert_close(
            found, attend(ReferenceBackend(), given, call), rtol=0, atol=1e-5
        )
        for row, (own, length) in enumerate(zip(found.split(counts), lengths, strict=True)):
            # As a captured step plans it: as if every row were as long as any may be.
            batch = given.batch.build(
                counts[row : row + 1],
                [length - counts[row]],
                given.batch.block_table[row : row + 1].cpu().numpy(),
                16,
                given.call.device,
            )
            first = sum(counts[:row])
            alone = replace(given, batch=batch, query=given.query[first : first + counts[row]])
            assert torch.equal(attend(backend, alone, call), own)
            longest = replace(batch, num_computed=(100_000,))
            assert torch.equal(attend(backend, replace(alone, batch=longest), call), own)
        exact = TritonBackend(exact=True).plan(given.batch, call)
        assert exact.step.partitions == -(-1002 // 128)


def test_a_broken_key_shows_and_only_in_its_row(problem: Any) -> None:
    given = problem([(1, 100), (1, 50)], page_size=16)
    given.pages[given.batch.block_table[0, 3], 5, 0] = float("nan")
    out = attend(TritonBackend(), given, given.call)
    assert out[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.row("F04.08")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 320}, "256 channels of a head, not 320"),
        ({"latent": True, "codes": CODES["int8"]}, "it reads no int8 latents"),
        ({"latent": True, "head_dim": 576}, "512 channels of a latent, not 576"),
        (
            {"latent": True, "head_dim": 900, "value_dim": 512},
            "256 channels behind a latent, not 388",
        ),
        ({"value_dim": 300}, "256 channels of a head, not 300"),
        ({"dtype": torch.float64}, "no product for torch.float64"),
        ({"device": torch.device("meta")}, "does not run on meta"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, change: dict[str, Any], said: str
) -> None:
    call = problem([(1, 1)]).call
    assert TritonBackend().refuses(call) is None
    assert said in str(TritonBackend().refuses(replace(call, **change)))


@pytest.mark.row("F04.08")
def test_the_choice_follows_packages_constraints_and_widths(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baton_worker.attention.backends import cpu
    from baton_worker.attention.backends.grouped import GroupedBackend

    call = problem([(1, 1)]).call
    monkeypatch.setattr(cpu, "library", lambda name: None)
    selector = AttentionSelector()
    assert isinstance(selector.select(call), TritonBackend)
    assert selector.select(call) is selector.select(replace(call))
    assert isinstance(selector.select(replace(call, head_dim=512)), GroupedBackend)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert isinstance(AttentionSelector().select(call), GroupedBackend)


@pytest.mark.row("F04.27")
def test_a_build_for_amd_is_refused_with_a_sentence(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "no variant for ROCm" in str(TritonBackend().refuses(problem([(1, 1)]).call))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs no interpreter")
def test_a_cpu_is_refused_unless_the_interpreter_is_on(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = problem([(1, 1)]).call
    assert "bfloat16" in str(TritonBackend().refuses(replace(call, dtype=torch.bfloat16)))
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "it needs a GPU" in str(TritonBackend().refuses(call))


@pytest.mark.row("V11")
def test_tokens_of_a_span_see_one_another_in_both_directions(problem: Any) -> None:
    both_ways(TritonBackend(), problem, torch.float32)
