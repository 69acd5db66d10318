"""A head without KV saves steps of a text that it was fitted to, and never changes a token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.draft_heads import proposer, save_head, with_head
from tests.support.worker.head_runs import last_hidden
from tests.support.worker.scheduled_engine import DEVICE, STORY, House


@pytest.mark.row("F08.08", "D07")
def test_a_fitted_head_saves_steps(stories: Path, tmp_path: Path) -> None:
    """Language heads by least squares on the target's own log; then greedy, sampled, shared prompts
    and a log that is continued."""
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32))
    options = SchedulerOptions(max_steps_per_plan=1)
    plain = House(loaded, options)
    asked = [Sampling(60, temperature=0.0), Sampling(60, temperature=0.8, seed=1)]
    for sampling in asked:
        plain.submit(STORY, sampling)
    plain.finish()
    text = STORY + plain.logs[0]
    states, tensors = last_hidden(stories)(text), {}
    for head in (0, 1):
        known = states[: len(text) - head - 2]
        wanted = torch.eye(loaded.vocab_size)[text[head + 2 :]]
        tensors[f"lm_heads.{head}.weight"] = torch.linalg.lstsq(known, wanted).solution.T
        tensors[f"blocks.{head}.layers.0.weight"] = torch.zeros(known.shape[1], known.shape[1])
    config = {"architectures": ["MedusaModel"], "num_heads": 2, "num_hidden_layers": 1}
    served = with_head(loaded, save_head(tmp_path, tensors, **config), "medusa")
    house = House(served, options, proposer=proposer(served), num_speculative_tokens=2)
    for sampling in asked:
        house.submit(STORY, sampling)
    house.finish()
    house.submit(STORY, asked[0], log=plain.logs[0][:20])
    assert house.finish() == plain.logs | {2: plain.logs[0]}
    results = house.results
    drafted, right = (sum(sum(getattr(r, n)) for r in results) for n in ("drafted", "accepted"))
    assert right > 40 and right > drafted / 4
