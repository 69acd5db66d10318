"""Speculation of an engine: its proposer, and the costs of steps that it goes by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from baton.protocol import Plan, Result
from baton_worker.engine.batch.draft_tokens import NO_DRAFTS
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.speculation.drafting import Drafting
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.ngram import NgramProposer
from baton_worker.speculative.token_tree import TokenTree

CONFIG = EngineConfig(
    build=BuildContext(torch.device("cpu"), torch.float32),
    num_pages=1000,
    page_size=16,
    page_bytes=1,
    draft_page_bytes=0,
    max_num_seqs=8,
    max_num_batched_tokens=2048,
    max_model_len=4096,
    vocab_size=100,
    weight_bytes=0,
    eos_ids=(),
)
NO_MODEL: Any = None
"""An n-gram needs none."""


def step(plan: Plan) -> Result:
    return Result(0, 0, b"", b"", b"", b"", duration_us=1000 * (1 + len(plan.rows)))


def test_without_speculation_a_batch_has_no_drafts() -> None:
    assert Drafting(NO_MODEL, CONFIG).options() == NO_DRAFTS


def test_a_batch_gets_the_proposer_and_the_costs_that_were_measured() -> None:
    drafting = Drafting(NO_MODEL, replace(CONFIG, speculative=SpeculativeConfig(3)))
    assert isinstance(drafting.options().proposer, NgramProposer)
    assert drafting.options().num_speculative_tokens == 3
    assert drafting.options().token_tree == TokenTree.chain(3)
    assert drafting.options().step_costs is None
    drafting.measure(step)
    assert drafting.options().step_costs is drafting.step_costs is not None
    again = Drafting(NO_MODEL, CONFIG, drafting.step_costs)
    assert again.step_costs is drafting.step_costs
