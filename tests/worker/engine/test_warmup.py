"""Warm-up plans fit whatever the engine is, and leave it empty."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.protocol.token_columns import unpack
from baton_worker.engine import warmup
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.kernels import triton
from baton_worker.kv_cache import LayerGroups
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.plans import commit

ROOT = Path(__file__).parents[3]

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


def run(resolved: EngineConfig) -> tuple[InputBatch, list[int]]:
    """Apply the plans without a model; the batch and the rows of each step."""
    batch = InputBatch(
        BatchSizes(
            max_num_seqs=resolved.max_num_seqs,
            max_model_len=resolved.max_model_len,
            page_size=resolved.page_size,
            num_pages=resolved.num_pages,
            vocab_size=resolved.vocab_size,
            windows=resolved.groups.windows,
        )
    )
    sizes = []
    for plan in warmup.plans(resolved):
        assert sum(unpack(plan.num_scheduled, "I")) <= resolved.max_num_batched_tokens
        inputs = batch.prepare(plan)
        assert not inputs.failed
        commit(batch, inputs, {slot: [slot] for slot in inputs.logits.slots.tolist()})
        sizes.append(len(inputs))
    return batch, sizes


@pytest.mark.parametrize("windows", [(0,), (0, 30, 30)])
def test_a_large_engine_meets_every_size(windows: tuple[int, ...]) -> None:
    batch, sizes = run(replace(LARGE, groups=LayerGroups(windows, (), ())))
    assert len(batch) == 0
    assert sizes == [n for rows in (1, 2, 4, 8, 16, 32) for n in (rows, rows, 0)]


def test_kernels_in_triton_meet_every_doubling_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton, "runs", lambda device: True)
    prompts = [sum(unpack(plan.num_scheduled, "I")) for plan in warmup.plans(LARGE)]
    assert prompts[:15] == [n for prompt in (128, 256, 512, 1024, 2048) for n in (prompt, 1, 0)]
    assert len(run(replace(LARGE, max_model_len=300))[0]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"num_pages": 1, "max_model_len": 16},
        {"num_pages": 1, "page_size": 1, "max_model_len": 1},
        {"num_pages": 3, "page_size": 4, "max_model_len": 12},
        {"max_num_seqs": 3},
        {"max_num_batched_tokens": 5},
        {"max_model_len": 2},
    ],
)
def test_a_small_engine_is_not_overrun(changes: dict[str, Any]) -> None:
    batch, _ = run(replace(LARGE, **changes))
    assert len(batch) == 0


FIRST = """
import json, os, sys
from pathlib import Path
from baton.protocol import Grammar, Sampling
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from tests.fakes.scheduler_planner import Planner, Sequence

folder, warm = sys.argv[1:]
if warm == "cold":
    Engine.warm_up = lambda engine: None
engine = Engine.build(Config(model=folder, device="cpu", dtype="bfloat16", threads=2))
planner = Planner(engine, num_pages=256, page_size=engine.resolved.page_size)


def state():
    maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
    return set(sys.modules), maps, set(os.listdir("/proc/self/task"))


found = []
for fields in (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "typical_p": 0.9},
    {"frequency_penalty": 0.5, "logit_bias": {5: 1.0}, "logprobs": 3, "prompt_logprobs": 2},
    {"grammar": Grammar("json_schema", '{"type": "array"}')},
):
    before = state()
    planner.add(Sequence([1, 403, 407, 261, 378] * 9, Sampling(max_tokens=20, **fields)))
    planner.finish()
    found.append([sorted(new - old) for new, old in zip(state(), before)])
print(json.dumps(found))
"""
"""What requests of each kind bring into a process: modules, libraries, threads."""


def first_requests(folder: Path, warm: str) -> list[list[list[str]]]:
    command = [sys.executable, "-c", FIRST, str(folder), warm]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.row("F13.07")
def test_the_first_request_finds_everything_in_place(stories: Path) -> None:
    """It loads, imports and starts nothing: its work is that of any later request."""
    *plain, constrained = first_requests(stories, "warm")
    assert plain == [[[], [], []]] * 3
    # One thread looks at grammars, from the first sequence on that has one.
    modules, libraries, threads = constrained
    assert (modules, libraries, len(threads)) == ([], [], 1)


@pytest.mark.slow
def test_without_warm_up_the_first_request_pays(stories: Path) -> None:
    """The test above would see it."""
    (_, libraries, _), *_ = first_requests(stories, "cold")
    assert libraries
