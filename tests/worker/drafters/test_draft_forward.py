"""A drafter over its own pages gives the logits that it gives anywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.drafters.draft_forward import DraftForward
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import DraftRequest
from tests.support.worker.proposers import context

TOKENS = np.array([1, 403, 407, 261, 378, 432, 383, 286, 261, 376], np.int64)


@pytest.mark.row("F08.01")
@torch.inference_mode()
def test_logits_are_those_of_transformers_with_and_without_replay(stories: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(stories, dtype=torch.float32)
    expected = reference(torch.from_numpy(TOKENS)[None]).logits[0, [5, 9]]
    loaded = load_model(stories, BuildContext(torch.device("cpu"), torch.float32))
    weights = DraftModelWeights(0, loaded, BuildContext(torch.device("cpu"), torch.float32))
    sizes = context(SpeculativeConfig(3), loaded)
    for graphs in (None, Sizes((8,), 256, 64)):
        run = DraftForward(weights, replace(sizes, graphs=graphs))
        assert isinstance(run._model, GraphedModel) == (graphs is not None)
        slots = np.array([5, 2])
        for slot, length in zip(slots.tolist(), (6, 9), strict=True):
            run.kv.follow(DraftRequest(slot, TOKENS[:length].astype(np.int32), 3))
            assert run.kv.reserve(slot, 10)
        hidden = run(slots, np.array([6, 9]), np.concatenate((TOKENS[:6], TOKENS[:9])))
        first = run.logits(hidden, np.array([5]))
        second = run.logits(run(slots[1:], np.array([1]), TOKENS[9:]))
        assert torch.allclose(torch.cat((first, second)), expected, atol=1e-4)
        # An id that the drafter does not have is run as another one.
        assert run(slots[:1], np.array([1]), np.array([99999])).isfinite().all()


@pytest.mark.row("F08.01")
def test_tokens_with_several_positions_have_those_of_text(stories: Path) -> None:
    loaded = load_model(stories, BuildContext(torch.device("cpu"), torch.float32))
    weights = DraftModelWeights(0, loaded, BuildContext(torch.device("cpu"), torch.float32))
    run = DraftForward(weights, context(SpeculativeConfig(3), loaded))
    given = np.array([4, 0]), np.array([1, 3])
    assert run._positions(*given).tolist() == [4, 0, 1, 2]
    run._axes = 3
    assert run._positions(*given).tolist() == [[4, 0, 1, 2]] * 3
