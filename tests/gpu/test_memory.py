"""Memory of a card: what steps leave to pages, and what passes between workers within it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu import checks


def test_the_largest_step_fits_beside_the_pages(card: torch.device, tmp_path: Path) -> None:
    """At the default share of the memory, with as many pages as that gives."""
    settings = {"num_gpu_blocks_override": 0, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
    engine = checks.build(tmp_path, "LlamaForCausalLM", card, **settings)
    assert engine.resolved.profile.step > 0 and engine.resolved.profile.graphs > 0
    used = checks.memory_of_busy_steps(engine, card)
    assert used <= engine.resolved.profile.step * 1.1


def test_kv_passes_beside_steps(card: torch.device) -> None:
    for direct in (False, True):
        checks.kv_passes_between_caches(card, direct=direct)


def test_another_process_opens_the_memory_of_a_card(card: torch.device) -> None:
    checks.another_process_opens_memory(card)


def test_weights_and_pages_outlive_a_killed_worker(
    card: torch.device, tmp_path: Path, run_dir: Path
) -> None:
    with checks.keeper_process(run_dir):
        checks.the_next_worker_attaches(tmp_path, card, run_dir, checks.in_a_killed_process)


@pytest.mark.row("F13.06")
def test_two_cards_replay_what_one_does(card: torch.device, tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("it needs two GPUs")
    one = checks.build(tmp_path, "LlamaForCausalLM", card)
    two = checks.build(tmp_path, "LlamaForCausalLM", card, tensor_parallel_size=2)
    try:
        assert not two.resolved.synchronous
        checks.replays_are_what_eager_steps_are(two, one)
    finally:
        two.close()
