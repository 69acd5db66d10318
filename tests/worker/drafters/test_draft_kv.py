"""The KV of a drafter follows logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.drafters.draft_kv import DraftKV
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.proposer import DraftRequest


@pytest.fixture
def kv(stories: Path) -> DraftKV:
    """Six pages of four tokens for three slots."""
    cpu = torch.device("cpu")
    spec = load_model(stories, BuildContext(cpu, torch.float32)).spec
    return DraftKV(KVCache(spec, 6, 4, dtype=torch.float32, device=cpu), 3, 20)


def request(slot: int, *tokens: int, group: bytes = b"") -> DraftRequest:
    return DraftRequest(slot, np.array(tokens, np.int32), 3, group)


def run(kv: DraftKV, slot: int, *tokens: int) -> None:
    assert kv.reserve(slot, int(kv.computed[slot]) + len(tokens))
    kv.advance(np.array([slot]), np.array([len(tokens)]), np.array(tokens))


@pytest.mark.row("F08.01")
def test_what_was_accepted_stays_and_the_rest_is_run_again(kv: DraftKV) -> None:
    assert kv.follow(request(0, 1, 2, 3)) == 3
    run(kv, 0, 1, 2, 3)
    run(kv, 0, 4, 5)  # Drafts.
    assert kv.follow(request(0, 1, 2, 3, 4, 9)) == 1, "4 was accepted, 9 sampled"
    assert kv.computed[0] == 4
    run(kv, 0, 9, 7, 8)
    assert kv.follow(request(0, 1, 2, 3, 4, 9, 7, 8, 6, 5)) == 2, "all were accepted"
    assert kv.follow(request(0, 1, 2, 3, 4, 9)) == 1, "one token at least is run"


@pytest.mark.row("F08.01")
def test_prefixes_are_shared_within_a_group_and_pages_come_back(kv: DraftKV) -> None:
    kv.follow(request(0, *range(1, 10), group=b"a"))
    run(kv, 0, *range(1, 10))
    run(kv, 0, 50, 51, 52)  # Drafts that fill a page: no prefix of anybody.
    assert kv.follow(request(0, *range(1, 12), group=b"a")) == 2
    assert kv.follow(request(1, *range(1, 9), group=b"a")) == 4, "one token is left to run"
    assert kv.follow(request(2, *range(1, 10), group=b"b")) == 9
    assert (kv.tables[0, 1, 0] == kv.tables[0, 0, 0]) and kv.reserve(1, 8)
    assert kv.reserve(2, 8) and not kv.reserve(2, 9), "all pages are held"
    kv.release(0)
    kv.release(2)
    kv.release(1)
    kv.release(1)  # It holds nothing.
    assert kv._pool.num_available == 6
    assert kv.follow(request(0, *range(1, 11), group=b"a")) == 2
