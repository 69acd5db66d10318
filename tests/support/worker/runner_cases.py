"""Rows with varied sampling, and a planner for a runner."""

from __future__ import annotations

import torch

from baton.protocol import Sampling
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.forward.causal_forward import CausalForward, CausalModel
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.kv_cache import KVCache
from tests.fakes.scheduler_planner import (
    Planner,
    Sequence,
)

NUM_PAGES, PAGE_SIZE = 256, 16

DEVICE = torch.device("cpu")


STORY = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376]


def planner_of(
    loaded: LoadedModel, model: CausalModel | None = None, chunk: int = 10_000
) -> Planner:
    cache = KVCache(loaded.spec, NUM_PAGES, PAGE_SIZE, dtype=torch.float32, device=DEVICE, spare=1)
    batch = InputBatch(
        BatchSizes(
            max_num_seqs=16,
            max_model_len=loaded.max_length,
            page_size=PAGE_SIZE,
            num_pages=NUM_PAGES,
            vocab_size=loaded.vocab_size,
        )
    )
    runner = ModelRunner(CausalForward(model or loaded.model, cache, DEVICE), cache, batch)
    return Planner(runner, num_pages=NUM_PAGES, page_size=PAGE_SIZE, chunk=chunk)


VARIED = [
    Sampling(40, seed=1),
    Sampling(30, seed=2, temperature=0.7, top_p=0.9),
    Sampling(35, seed=3, top_k=20),
    Sampling(40, seed=4, min_p=0.1, temperature=1.5),
    Sampling(25, seed=5, repetition_penalty=1.3, frequency_penalty=0.2),
    Sampling(40, seed=6, presence_penalty=0.8, logprobs=3),
    Sampling(40, temperature=0.0),
    Sampling(40, seed=7, logit_bias={261: 3.0, 432: -100.0}),
    Sampling(40, seed=8, typical_p=0.7),
    Sampling(40, seed=9, allowed_ids=tuple(range(260, 300)), typical_p=0.9, logprobs=1),
    Sampling(
        40,
        seed=10,
        bad_words=((261,), (3, 432)),
        processors={"no_repeat_ngram": '{"size":2}'},
    ),
]


def varied() -> list[Sequence]:
    return [Sequence(STORY[: 2 + i], sampling) for i, sampling in enumerate(VARIED)]
