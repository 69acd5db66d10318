"""Trees of drafts: tokens are those without drafts, and log-probabilities within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.drafters.draft_model import DraftModelProposer
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import (
    Column,
    DraftRequest,
    DraftSampler,
    Proposer,
    Tokens,
)
from baton_worker.speculative.token_tree import TokenTree
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.support import tiny_models
from tests.support.worker.constrained_rows import EOS, GRAMMARS, PLAIN, Jumping, constraints
from tests.support.worker.proposers import context
from tests.support.worker.scheduled_engine import DEVICE, STORY, House, busy, varied

BUILD = BuildContext(DEVICE, torch.float32)
TREE = TokenTree.parse(
    "[(0,), (1,), (2,), (0,0), (0,1), (1,0), (1,1), (2,0), (0,0,0), (0,0,1), (1,0,0), (1,1,0)]"
)
SPINE = TokenTree.parse("[(0,), (1,), (0, 0), (0, 1), (0, 2)]")
PROMPTS = [STORY[: 3 + i] for i in range(4)] + [STORY[i:] for i in range(4)]
"""Those of `busy`, in its order."""
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.7, "grammar": GRAMMARS[0], "max_tokens": 60},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.2, "min_p": 0.02},
    {"temperature": 0.9, "stop_ids": (EOS, 261, 286), "min_tokens": 5},
)


class Ranked(Proposer):
    """Knows whole sequences, and holds each next token for the most probable, the second or the
    third; sometimes it is wrong."""

    def __init__(self, texts: Sequence[Sequence[int]], vocab: int) -> None:
        self._texts = [np.array(text, np.int64) for text in texts]
        self._vocab, self._random = vocab, np.random.default_rng(1)

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        drafts = [self._drafts(request, sampler) for request in requests]
        return [np.array(some, np.int32) for some in drafts]

    def _drafts(self, request: DraftRequest, sampler: DraftSampler) -> list[int]:
        length, drafts = len(request.tokens), list[int]()
        known = [t for t in self._texts if (t[:length] == request.tokens[: len(t)]).all()]
        for depth in range(request.most):
            order = self._random.permutation(self._vocab)[:4]
            if known and length + depth < len(known[0]):
                order[self._random.integers(4)] = known[0][length + depth]
            logits = torch.zeros(1, self._vocab)
            logits[0, torch.from_numpy(order.copy())] = torch.tensor([400.0, 300.0, 200.0, 100.0])
            token = int(sampler.sample(logits, _column(request.slot))[0])
            if token < 0:
                break
            drafts.append(token)
        return drafts


def _column(slot: int) -> Column:
    return np.array([slot], np.int64)


def _asked() -> list[tuple[list[int], Sampling]]:
    fields = {"max_tokens": 12, "stop_ids": (EOS,)}
    prompts = [[1, *(3 + 7 * i * n % 400 for i in range(n)), *STORY] for n in range(4)]
    return [
        (prompt, Sampling(**fields | {"seed": 100 * n + m} | kind))
        for n, prompt in enumerate(prompts)
        for m, kind in enumerate(KINDS)
    ]


def _steps(house: House) -> tuple[int, int]:
    """Drafts that were verified and accepted."""
    counts = [(sum(r.drafted), sum(r.accepted)) for r in house.results]
    return sum(d for d, _ in counts), sum(a for _, a in counts)


@pytest.mark.row("F08.11", "F08.12", "F15.04")
def test_a_tree_changes_no_token(stories: Path) -> None:
    """Greedy, seeded, a schema, log-probabilities, penalties, stops; prompts in chunks."""
    loaded = load_model(stories, replace(BUILD, trees=True))
    like = constraints(stories, Vocabulary.read(stories, loaded.vocab_size), jump_ahead=True)
    plain = Jumping(load_model(stories, BUILD), like, PLAIN)
    for prompt, sampling in _asked():
        plain.submit(prompt, sampling)
    expected = plain.finish()
    texts = [prompt + expected[n] for n, (prompt, _) in enumerate(_asked())]
    small = load_model(stories, replace(BUILD, quantization="int4"))
    target = replace(loaded, drafter=DraftModelWeights(0, small, BUILD))
    drafting = SpeculativeConfig(len(SPINE.nodes), "draft_model", "it is loaded already")
    for shape, proposer in (
        (SPINE, DraftModelProposer(context(drafting, target))),
        (TREE, Ranked(texts, loaded.vocab_size)),
    ):
        house = Jumping(
            loaded,
            like,
            SchedulerOptions(max_num_batched_tokens=32),
            pages=90,
            proposer=proposer,
            num_speculative_tokens=len(shape.nodes),
            token_tree=shape,
        )
        for prompt, sampling in _asked():
            house.submit(prompt, sampling)
        assert house.finish() == expected
        drafted, accepted = _steps(house)
        assert 40 < accepted < drafted
    for handle, lines in plain.logprobs.items():
        for line, other in zip(lines, house.logprobs[handle], strict=True):
            (value, rank, likely), (other_value, other_rank, others) = line, other
            assert value == pytest.approx(other_value, abs=1e-4) and rank == other_rank
            assert dict(likely) == pytest.approx(dict(others), abs=1e-4)


def _few(house: House) -> list[list[int]]:
    for prompt, sampling in zip(PROMPTS, varied(24), strict=False):
        house.submit(prompt, sampling)
    return list(house.finish().values())


@pytest.mark.row("F08.11")
def test_latent_attention_windows_and_preemption(stories: Path, tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path / "mla", "DeepseekV3ForCausalLM", vocab_size=512)
    tiny_models.save_checkpoint(tmp_path / "window", "MistralForCausalLM", vocab_size=512)
    for folder, pages, shape, run in (
        (stories, 28, SPINE, busy),
        (tmp_path / "mla", 60, TREE, _few),
        (tmp_path / "window", 120, TREE, _few),
    ):
        step = SchedulerOptions(max_steps_per_plan=1)
        expected = run(House(load_model(folder, BUILD), step))
        texts = [p + log for p, log in zip(PROMPTS, expected, strict=False)]
        loaded = load_model(folder, replace(BUILD, trees=True))
        house = House(
            loaded,
            step,
            num_pages=pages,
            proposer=Ranked(texts, loaded.vocab_size),
            num_speculative_tokens=len(shape.nodes),
            token_tree=shape,
        )
        assert run(house) == expected, folder
        assert house.state.counters.preemptions or run is not busy
        drafted, accepted = _steps(house)
        assert 20 < accepted < drafted
