"""What all backends have in common."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton_worker.attention import BACKENDS
from baton_worker.attention.backends import cpu
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from tests.worker.attention.conftest import ON_A_CPU, both_ways


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where the C++ kernels cannot be had."""
    monkeypatch.setattr(cpu, "library", lambda name: None)


def test_every_entry_imports() -> None:
    for name in BACKENDS.names():
        assert callable(BACKENDS.load(name)().plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ON_A_CPU)
def test_pages_before_the_window_may_be_replaced_by_the_first_within(
    problem: Any, name: str, dtype: torch.dtype
) -> None:
    """To the last bit, for decode rows and chunks, and whatever is in the pages by then."""
    rows, size = [(1, 300), (20, 150), (1, 70), (3, 9)], 4
    task = problem(rows, window=13, page_size=size, dtype=dtype)
    backend = BACKENDS.load(name)()
    if (reason := backend.refuses(task.call)) is not None:
        pytest.skip(f"{name}: {reason}")
    whole = backend.forward(backend.plan(task.batch, task.call), task.query, task.pages)
    table, pages = task.batch.block_table.clone(), task.pages.clone()
    for row, (_, start) in enumerate(rows):
        first = max(0, start - 13) // size
        pages[table[row, :first].long()] = torch.nan
        table[row, :first] = table[row, first]
    batch = replace(task.batch, block_table=table)
    left = backend.forward(backend.plan(batch, task.call), task.query, pages)
    assert pages.isnan().any() and whole.isfinite().all()
    assert torch.equal(left, whole)


ROWS = [(1, 30), (50, 0), (1, 200), (4, 9), (20, 300), (1, 3)]


@pytest.mark.row("F12.10")
@pytest.mark.parametrize("kind", ["auto", *CODES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ON_A_CPU)
def test_attention_has_the_same_bits_over_either_layout(
    problem: Any, name: str, dtype: torch.dtype, kind: str
) -> None:
    codes = CODES.get(kind)
    given = problem(ROWS, heads=(6, 2), head_dim=40, window=70, page_size=16, dtype=dtype)
    kept = given.pages if codes is None else codes.encode(given.pages)
    backend, answers = BACKENDS.load(name)(), list[torch.Tensor]()
    for layout in sorted(backend.layouts):
        call = replace(given.call, codes=codes, layout=layout)
        if (reason := backend.refuses(call)) is not None:
            pytest.skip(f"{name}: {reason}")
        pages = layout.zeros(kept.shape, dtype=kept.dtype, device=call.device)
        plan = backend.plan(given.batch, call)
        answers.append(backend.forward(plan, given.query, pages.copy_(kept)))
    assert len(answers) == 2 and torch.equal(*answers)


EVERY_FEATURE: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "chunks": {"chunk": 7},
    "soft cap": {"softcap": 3.0},
    "ALiBi": {"slopes": (0.5, 0.25, 0.125, 0.0625)},
    "sinks": {"sinks": True},
    "sinks of each token": {"token_sinks": True},
    "keys as values": {"latent": True, "num_kv_heads": 1},
    "chosen keys": {"latent": True, "num_kv_heads": 1, "value_dim": 3, "most_keys": 5},
    "narrow values": {"value_dim": 3},
    "wide values": {"value_dim": 11},
    "in parts": {"partial": True},
    "trees": {"tree": True},
    "all at once": {
        **{"window": 9, "chunk": 7, "softcap": 3.0, "slopes": (0.5, 0.25, 0.125, 0.0625)},
        **{"sinks": True, "value_dim": 3, "partial": True, "tree": True},
    },
}


@pytest.mark.row("F04.01")
@pytest.mark.parametrize("features", EVERY_FEATURE.values(), ids=EVERY_FEATURE.keys())
def test_plain_torch_takes_every_layer_on_any_machine(
    problem: Any, no_compiler: None, features: dict[str, Any]
) -> None:
    for layout, dtype in product(
        Layout, [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    ):
        call = replace(problem([(1, 1)]).call, dtype=dtype, layout=layout, **features)
        for codes in [None, *CODES.values()] if not call.latent else [None]:
            chosen = AttentionSelector().select(replace(call, codes=codes))
            assert isinstance(chosen, GroupedBackend | ReferenceBackend)


@pytest.mark.row("F04.01")
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("name", ["grouped", "reference"])
def test_plain_torch_is_what_attention_over_each_whole_text_would_be(
    problem: Any, name: str, window: int | None
) -> None:
    """Decode, prefill, chunks and drafts, ragged, for every number of heads that share a key."""
    for group in range(1, 17):
        rows = [(1, 30), (50, 0), (21, 13), (4, 9), (1, 0)]
        given = problem(rows, heads=(2 * group, 2), window=window)
        backend = BACKENDS.load(name)()
        ours = backend.forward(backend.plan(given.batch, given.call), given.query, given.pages)
        for row, (count, start) in enumerate(rows):
            first = int(given.batch.query_start_loc[row])
            text = given.pages[given.batch.block_table[row].long()].flatten(0, 1)[: start + count]
            behind = torch.arange(start, start + count)[:, None] - torch.arange(start + count)
            mask = (behind >= 0) & (behind < (window or 1000))
            query, key, value = (
                x.transpose(0, 1) for x in (given.query[first : first + count], *text.unbind(1))
            )
            expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
            found = ours[first : first + count]
            torch.testing.assert_close(
                found, expected.transpose(0, 1).flatten(1), rtol=0.0, atol=1e-5
            )


@pytest.mark.row("F04.16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(24, 16), (192, 128), (16, 5), (8, 20)])
@pytest.mark.parametrize("name", ON_A_CPU)
def test_values_of_another_width_than_keys(
    problem: Any, name: str, head_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    """As over pages in which keys and values are padded to one width."""
    for layout, kind in product(Layout, ["auto", *CODES]):
        codes, backend = CODES.get(kind), BACKENDS.load(name)()
        given = problem(ROWS, heads=(6, 2), head_dim=head_dim, page_size=16, dtype=dtype)
        key, value = given.pages[:, :, :1], given.pages.roll(1, -1).repeat(1, 1, 1, 1, 3)
        value = value[:, :, 1:, :, :value_dim]
        parts = [key, value] if codes is None else [codes.encode(key), codes.encode(value)]
        kept = torch.cat(parts, -1)
        pages = layout.zeros(kept.shape, dtype=kept.dtype, device=given.call.device).copy_(kept)
        call = replace(given.call, value_dim=value_dim, codes=codes, layout=layout)
        assert backend.refuses(call) is None
        ours = backend.forward(backend.plan(given.batch, call), given.query, pages)
        assert ours.shape == (len(given.query), 6 * value_dim)

        if codes is not None:
            key, value = (codes.decode(part, torch.float32) for part in parts)
        widest = max(head_dim, value_dim)
        padded = torch.cat(
            [F.pad(part.float(), (0, widest - part.shape[-1])) for part in (key, value)], 2
        )
        query = F.pad(given.query, (0, widest - head_dim))
        plain, reference = replace(given.call, head_dim=widest), ReferenceBackend()
        expected = reference.forward(reference.plan(given.batch, plain), query, padded)
        expected = expected.view(len(query), 6, -1)[..., :value_dim].flatten(1)
        tolerance = 1e-5 if dtype is torch.float32 else 0.02
        torch.testing.assert_close(ours, expected, rtol=0.0, atol=tolerance)


@pytest.mark.row("V11")
@pytest.mark.parametrize("name", [*ON_A_CPU, "flex"])
def test_tokens_of_a_span_see_one_another_in_both_directions(problem: Any, name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        both_ways(BACKENDS.load(name)(), problem, dtype)
