"""Whole tiny models: transformers' tokens, captured, replayed, launched ahead, without waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import checks


@pytest.mark.row("F13.06")
@pytest.mark.parametrize("architecture", [*checks.KINDS])
def test_models(card: torch.device, tmp_path: Path, architecture: str) -> None:
    engine = checks.says_what_transformers_says(tmp_path, architecture, card)
    eager = checks.build(tmp_path, architecture, card, cuda_graphs=False)
    checks.replays_are_what_eager_steps_are(engine, eager)
    checks.launching_ahead_changes_no_token(engine)
    checks.a_launched_step_waits_for_nothing(engine, card)
    checks.mixed_plans_compile_nothing(engine)


@pytest.mark.row("F03.02")
@pytest.mark.parametrize("name", [*checks.QUANTISED])
def test_quantised_models(card: torch.device, tmp_path: Path, name: str) -> None:
    case = checks.QUANTISED[name]
    engine = checks.says_what_the_numbers_say(tmp_path / "a", card, case)
    eager = checks.says_what_the_numbers_say(tmp_path / "b", card, case, cuda_graphs=False)
    checks.replays_are_what_eager_steps_are(engine, eager)
    checks.a_launched_step_waits_for_nothing(engine, card)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_numbers(card: torch.device, tmp_path: Path, dtype: str) -> None:
    given = getattr(torch, dtype)
    assert checks.products_do_not_depend_on_the_place_of_a_row(card, given, 4096, 128)
    settings = {"max_num_seqs": 256, "exact": True, "dtype": dtype}
    engine = checks.build(tmp_path, "LlamaForCausalLM", card, **settings)
    found = checks.rows_do_not_depend_on_each_other(engine, (1, 7, 63, 200))
    assert all(found.values()), found
    assert checks.a_decoded_token_has_the_bits_of_a_prompt(engine)


def test_rows_do_not_depend_on_each_other(card: torch.device, tmp_path: Path) -> None:
    engine = checks.build(tmp_path, "LlamaForCausalLM", card, max_num_seqs=256)
    found = checks.rows_do_not_depend_on_each_other(engine, (1, 7, 63, 200))
    if not all(found.values()):
        pytest.xfail(f"bits of products of cuBLAS depend on the number of rows: {found}")
