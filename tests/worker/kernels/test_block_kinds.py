"""Kinds of blocks: widths of codes, and tables that kernels can hold exactly."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.block_kinds import KINDS, TABLES


@pytest.mark.parametrize("kind", KINDS)
def test_codes_fit_their_bits(kind: str) -> None:
    form = KINDS[kind]
    count = form.highest - form.lowest + 1
    assert count <= 2**form.bits and form.bits in (2, 3, 4, 5, 6, 8)
    assert form.multiple % form.group == 0


def test_tables_have_an_entry_per_nibble_and_are_exact_in_bfloat16() -> None:
    for name, table in TABLES.items():
        values = torch.tensor(table, dtype=torch.float32)
        assert len(table) == 16
        assert torch.equal(values.bfloat16().float(), values) == (name != "nf4")


def test_codes_are_looked_up() -> None:
    codes = torch.tensor([0, 7, 8, 15], dtype=torch.int8)
    assert KINDS["iq4"].numbers(codes).tolist() == [-127, -10, 1, 113]
    assert KINDS["iq3_xxs_super"].numbers(codes).tolist() == [1, 15.5, -1, -15.5]
    assert KINDS["int5"].numbers(codes).tolist() == [0, 7, 8, 15]
