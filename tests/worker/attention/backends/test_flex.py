"""Attention whose mask is a function, against the reference and against masks written out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention

from baton.errors import ModelError
from baton_worker.attention import BACKENDS, selector
from baton_worker.attention.backends.flex import FlexBackend, MaskMod
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from tests.worker.attention.conftest import in_parts, kept, over_branches, sinks_for

SLOPES = (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01)
ROWS = {
    "decode": [(1, 30), (1, 0), (1, 7)],
    "prefill": [(70, 0)],
    "mixed": [(1, 30), (50, 0), (1, 520), (4, 9), (20, 13)],
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 70},
    "chunks": {"chunk": 50},
    "soft cap": {"softcap": 3.0},
    "ALiBi in a window": {"slopes": SLOPES, "window": 100},
    "ALiBi, bent": {"slopes": SLOPES, "softcap": 3.0},
    "sinks": {"sinks": True},
    "sinks of each token": {"token_sinks": True},
    "narrow values": {"value_dim": 5},
    "latents": {"latent": True, "num_kv_heads": 1, "value_dim": 5},
}


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks at a mask anew wherever the shapes are new, which takes it seconds: not here."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def attend(backend: Any, given: Any, call: Any, pages: Tensor) -> Tensor:
    assert backend.refuses(call) is None
    plan, sinks = backend.plan(given.batch, call), sinks_for(given, call)
    found: Tensor = backend.forward(plan, given.query, pages, sinks)
    return found


@pytest.mark.row("F04.15")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_matches_the_reference(
    problem: Any, untraced: None, rows: list[tuple[int, int]], features: dict[str, Any]
) -> None:
    given = problem(rows, heads=(6, 2), head_dim=16, page_size=16)
    call = replace(given.call, **features)
    ours, expected = (
        attend(backend, given, call, kept(given, call))
        for backend in (FlexBackend(), ReferenceBackend())
    )
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=1e-5)


@pytest.mark.row("F04.15")
@pytest.mark.parametrize("group", [1, 5, 12, 16])
def test_traced_as_torch_does_it(problem: Any, group: int) -> None:
    given = problem([(1, 30), (9, 3)], heads=(2 * group, 2), window=20)
    ours, expected = (
        attend(backend, given, given.call, given.pages)
        for backend in (FlexBackend(), ReferenceBackend())
    )
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=1e-5)


@pytest.mark.row("F04.15")
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("kind", ["auto", *CODES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_of_codes_in_either_layout(
    problem: Any, untraced: None, kind: str, dtype: torch.dtype, layout: Layout
) -> None:
    codes = CODES.get(kind)
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=18, page_size=16, dtype=dtype)
    stored = given.pages if codes is None else codes.encode(given.pages)
    pages = layout.zeros(stored.shape, dtype=stored.dtype, device=given.call.device).copy_(stored)
    call = replace(given.call, codes=codes, layout=layout)
    ours, expected = (
        attend(FlexBackend(), given, call, pages),
        attend(ReferenceBackend(), given, call, stored),
    )
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=tolerance)


@pytest.mark.row("F04.28")
@pytest.mark.parametrize("features", [{}, {"window": 70, "sinks": True}], ids=str)
def test_parts_of_the_keys_merge_to_the_whole(
    problem: Any, untraced: None, features: dict[str, Any]
) -> None:
    in_parts(FlexBackend(), problem, **features)


@pytest.mark.row("F04.13", "F04.15")
@pytest.mark.parametrize(
    "features", [{}, {"window": 9}, {"slopes": SLOPES, "softcap": 3.0}, {"sinks": True}], ids=str
)
def test_each_branch_of_a_tree_is_attended_as_if_it_were_the_text(
    problem: Any, untraced: None, features: dict[str, Any]
) -> None:
    over_branches(FlexBackend(), problem, **features)


def first_and_last(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The first four tokens and a window (Xiao et al. 2023, arXiv:2309.17453)."""
    return (key <= query) & ((key < 4) | (query - key < 9))


def prefix(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The first twenty tokens see each other, whichever comes first (prefix LM)."""
    return (key <= query) | (key < 20)


def dilated(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Each head sees every so many tokens, and the first row all of them."""
    return (key <= query) & (((query - key) % (head + 1) == 0) | (row == 0))


MASKS: list[tuple[MaskMod, Callable[[int, int, int, int], bool]]] = [
    (first_and_last, lambda r, h, q, k: k <= q and (k < 4 or q - k < 9)),
    (prefix, lambda r, h, q, k: k <= q or k < 20),
    (dilated, lambda r, h, q, k: k <= q and ((q - k) % (h + 1) == 0 or r == 0)),
]


@pytest.mark.row("F04.15")
@pytest.mark.parametrize(("mask_mod", "seen"), MASKS, ids=lambda mask: mask.__name__)
def test_any_function_of_positions_is_a_mask(
    problem: Any, mask_mod: MaskMod, seen: Callable[[int, int, int, int], bool]
) -> None:
    """Over decode rows, prompts and chunks, as over each text whole with the mask written out."""
    rows = [(1, 30), (40, 0), (21, 23), (1, 0)]
    given = problem(rows, heads=(4, 2), page_size=16)
    ours = attend(FlexBackend(mask_mod), given, given.call, given.pages)
    for row, (count, start) in enumerate(rows):
        first = int(given.batch.query_start_loc[row])
        text = given.pages[given.batch.block_table[row].long()].flatten(0, 1)[: start + count]
        shape, own = (4, count, start + count), partial(seen, row)
        mask = torch.tensor([own(h, q + start, k) for h, q, k in np.ndindex(shape)]).view(shape)
        query, key, value = (
            x.transpose(0, 1) for x in (given.query[first : first + count], *text.unbind(1))
        )
        expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        found = ours[first : first + count]
        torch.testing.assert_close(found, expected.transpose(0, 1).flatten(1), rtol=0.0, atol=1e-5)


streaming = partial(FlexBackend, first_and_last)
"""What a package outside this repository would name in its entry point."""


@pytest.mark.row("F04.15")
def test_a_mask_of_ones_own_is_a_backend_under_its_name(
    problem: Any, untraced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = EntryPoint("streaming", f"{__name__}:streaming", "baton.attention")
    monkeypatch.setattr("baton.registry.entry_points", lambda group: [found])
    monkeypatch.setattr(selector, "BACKENDS", type(BACKENDS)("attention", BACKENDS._table))
    given = problem([(1, 30)])
    chosen = AttentionSelector().select(given.call)
    assert not isinstance(chosen, FlexBackend), "only who asks for it has it"
    streaming_backend = AttentionSelector("streaming").select(given.call)
    ours = attend(streaming_backend, given, given.call, given.pages)
    assert torch.equal(ours, attend(FlexBackend(first_and_last), given, given.call, given.pages))
    assert not torch.equal(ours, attend(FlexBackend(), given, given.call, given.pages))


@pytest.mark.parametrize("name", ["flex", "flex_attention", "FLEX_ATTENTION"])
def test_it_is_taken_by_name_and_never_by_itself(
    problem: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = problem([(1, 1)]).call
    assert BACKENDS.names().index("flex") > BACKENDS.names().index("reference")
    with caplog.at_level(logging.INFO, "baton_worker.attention"):
        assert isinstance(AttentionSelector(name).select(call), FlexBackend)
    assert "attention: flex (4 query" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": torch.float8_e4m3fn}, "need a kernel that widens them"),
        ({"latent": True, "codes": CODES["int8"]}, "it reads no int8 latents"),
        ({"latent": True, "most_keys": 9}, "chosen ones are a row for each token"),
        ({"device": torch.device("meta")}, "it does not run on meta"),
        ({"device": torch.device("cuda")}, "start at 16 channels of a head, not 8"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, change: dict[str, Any], said: str
) -> None:
    call = replace(problem([(1, 1)]).call, **change)
    assert said in str(FlexBackend().refuses(call))
    with pytest.raises(ModelError, match=f"flex refused: .*{said}"):
        AttentionSelector("flex").select(call)
