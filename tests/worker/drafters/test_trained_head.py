"""Heads that `tools.train_draft_head` trains draft for their target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.token_tree import TokenTree
from tests.fakes.two_ranks import TwoRanks
from tests.support.worker.draft_heads import proposer, with_head
from tests.support.worker.head_runs import without_drafts
from tests.support.worker.scheduled_engine import DEVICE, STORY, House, busy
from tools.train_draft_head import METHODS, Target, save, train_head


@pytest.mark.row("F08.05", "F08.10", "F08.11", "F15.04")
def test_a_trained_head_drafts_for_its_target(
    stories: Path, tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """EAGLE-3 as a tree, and a chain of multi-token prediction; both on the first of two ranks."""
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32, trees=True))
    shape = TokenTree.parse("[(0,), (1,), (2,), (0, 0), (0, 1)]")
    expected = without_drafts(loaded)
    target = Target(AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        beginnings = torch.tensor([[1, *STORY[1 + n % 6 : 4 + n % 6]] for n in range(40)])
        tokens = target.own_texts(beginnings, 48)
        for method in METHODS:
            head, losses, agrees = train_head(target, tokens, method, steps=50, vocab=400)
            assert sum(losses[-5:]) / 5 < 0.7 * losses[0], method
            assert agrees[0] > 0.15, method
            folder = tmp_path / method
            assert len(save(head, target, folder)) == 64
            served = with_head(loaded, folder, method)
            tree = shape if method == "eagle3" else None
            house = House(served, SchedulerOptions(), proposer=proposer(served), token_tree=tree)
            assert busy(house) == expected
            drafted = sum(sum(result.drafted) for result in house.results)
            accepted = sum(sum(result.accepted) for result in house.results)
            assert accepted > 0.05 * drafted > 0, method
            check_ranks(two_ranks, stories, SpeculativeConfig(3, method, str(folder)), expected)


def check_ranks(
    two_ranks: TwoRanks, target: Path, config: SpeculativeConfig, expected: list[list[int]]
) -> None:
    """The head and the tables that it shares are whole on the first rank."""
    given = {
        "method": config.method,
        "model": config.model,
        "num_speculative_tokens": config.num_speculative_tokens,
    }
    with two_ranks.serving(target, speculative=json.dumps(given), grouped=True) as led:
        head = proposer(led.loaded)
        house = House(led.loaded, SchedulerOptions(), proposer=head, pages=led.cache)
        assert busy(house) == expected
        assert sum(sum(result.accepted) for result in house.results) > 0, config.method
