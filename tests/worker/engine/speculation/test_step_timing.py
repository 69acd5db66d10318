"""Steps are timed by their new tokens, with drafts behind rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton.protocol import Plan, Result
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.speculation import step_timing
from baton_worker.kv_cache import LayerGroups
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.plans import commit

LARGE = EngineConfig(
    build=BuildContext(torch.device("cpu"), torch.float32),
    num_pages=1000,
    page_size=16,
    page_bytes=1,
    draft_page_bytes=0,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    max_model_len=4096,
    vocab_size=100,
    weight_bytes=0,
    eos_ids=(),
)


@pytest.mark.parametrize(
    ("resolved", "most"),
    [
        (LARGE, 64),
        (replace(LARGE, groups=LayerGroups((0, 32), (0, 1), (0, 0))), 64),
        (replace(LARGE, max_num_seqs=2), 16),
        (replace(LARGE, num_pages=3), 8),
        (replace(LARGE, max_model_len=40), 0),
    ],
)
def test_steps_have_so_many_tokens_and_fit_whatever_the_engine_is(
    resolved: EngineConfig, most: int
) -> None:
    held = InputBatch(
        BatchSizes(
            max_num_seqs=resolved.max_num_seqs,
            max_model_len=resolved.max_model_len,
            page_size=resolved.page_size,
            num_pages=resolved.num_pages,
            vocab_size=resolved.vocab_size,
            windows=resolved.groups.windows,
        ),
        drafting=step_timing.OPTIONS,
    )
    wide = list[int]()

    def step(plan: Plan) -> Result:
        """Every draft of the second half of the steps is accepted."""
        inputs = held.prepare(plan)
        tokens = len(inputs.tokens)
        drafts = held.drafts.counts.copy()
        made = {slot: [0] * (int(drafts[slot]) + 1) for slot in inputs.rows.slots.tolist()}
        committed = commit(held, inputs, made if plan.rows else {})
        if plan.rows and not plan.new_sequences:
            wide.append(tokens)
        duration = tokens / 1e3 + (0 if len(wide) % 4 else 1.0)
        return StepOutputs(inputs).result(
            plan, 0, committed._replace(first=inputs.lengths[:0]), duration, 0
        )

    seconds = step_timing.measure(step, resolved)
    assert max(seconds, default=0) == most and len(held) == 0
    assert sorted(set(wide)) == sorted(seconds)
    assert all(took == pytest.approx(tokens / 1e3) for tokens, took in seconds.items())
