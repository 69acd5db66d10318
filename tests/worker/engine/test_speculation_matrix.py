"""Every method beside every kind of request: tokens and log-probabilities are those without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.drafters.draft_model import DraftModelProposer
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.ngram import NgramProposer
from baton_worker.speculative.proposer import Proposer
from baton_worker.speculative.suffix import SuffixProposer
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.worker_pairs import Team
from tests.support.worker.constrained_rows import EOS, GRAMMARS, PLAIN, Jumping, constraints
from tests.support.worker.proposers import context
from tests.support.worker.scheduled_engine import DEVICE, STORY

CPU = BuildContext(DEVICE, torch.float32)
PROMPTS = [[1, *(3 + (7 * i * n + 11 * n) % 400 for i in range(n % 9)), *STORY] for n in range(40)]
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.7, "grammar": GRAMMARS[0], "max_tokens": 60},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.2, "min_p": 0.02},
    {"temperature": 0.9, "stop_ids": (EOS, 261, 286), "min_tokens": 5},
)
"""Greedy, seeded, a schema, log-probabilities, penalties, stops."""


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, CPU)


@pytest.fixture(scope="module")
def like(stories: Path, loaded: LoadedModel) -> StructuredOutputManager:
    vocabulary = Vocabulary.read(stories, loaded.vocab_size)
    return constraints(stories, vocabulary, jump_ahead=True)


@pytest.fixture(scope="module")
def methods(stories: Path, loaded: LoadedModel) -> dict[str, Callable[[], Proposer]]:
    """How each is built for a worker of eight rows."""
    drafter = load_model(stories, replace(CPU, quantization="int4"))
    texts = SpeculativeConfig(4, prompt_lookup_min=1, suffix_decoding_max_spec_factor=4.0)
    drafting = SpeculativeConfig(4, "draft_model", "it is loaded already")
    target = replace(loaded, drafter=DraftModelWeights(0, drafter, CPU))
    return {
        "ngram": lambda: NgramProposer(context(texts)),
        "suffix": lambda: SuffixProposer(context(texts)),
        "draft_model": lambda: DraftModelProposer(context(drafting, target)),
    }


def asked() -> list[tuple[list[int], Sampling]]:
    """Each prompt in each kind."""
    fields = {"max_tokens": 10, "stop_ids": (EOS,)}
    return [
        (prompt, Sampling(**fields | {"seed": 100 * n + m} | kind))
        for n, prompt in enumerate(PROMPTS)
        for m, kind in enumerate(KINDS)
    ]


def answers(house: Jumping) -> tuple[dict[int, list[int]], dict[int, list[Any]]]:
    for prompt, sampling in asked():
        house.submit(prompt, sampling)
    return house.finish(), house.logprobs


@pytest.mark.row("F08.01", "F08.02", "F08.03", "F08.12", "F13.10")
def test_no_method_changes_a_token_or_a_log_probability(
    loaded: LoadedModel,
    like: StructuredOutputManager,
    methods: dict[str, Callable[[], Proposer]],
) -> None:
    expected = answers(Jumping(loaded, like, PLAIN))
    assert len(expected[0]) == 240 and len(expected[1]) == 40
    for name, build in methods.items():
        house = Jumping(loaded, like, SchedulerOptions(), proposer=build())
        assert answers(house) == expected, name
        drafted = sum(sum(result.drafted) for result in house.results)
        accepted = sum(sum(result.accepted) for result in house.results)
        assert 0 < accepted < drafted, name


@pytest.mark.row("F15.04", "F08.12")
def test_guided_and_chunked_sequences_are_handed_over_between_drafters(
    loaded: LoadedModel,
    like: StructuredOutputManager,
    methods: dict[str, Callable[[], Proposer]],
    run_dir: Path,
) -> None:
    """Prefill and decode workers with the same method, with another, or with none; prompts in
    chunks of 8 and whole."""
    chosen = [pair for n, pair in enumerate(asked()) if n % 31 == 0 or n in (2, 8, 14)]
    plain = Jumping(loaded, like, PLAIN)
    for prompt, sampling in chosen:
        plain.submit(prompt, sampling)
    expected = list(plain.finish().values())
    for number, (before, after, chunk) in enumerate(
        (
            ("draft_model", "draft_model", 8),
            ("ngram", "draft_model", 256),
            ("draft_model", "", 8),
            ("", "suffix", 256),
        )
    ):
        roles = {"prefill": before, "decode": after}
        drafters = {role: methods[name]() for role, name in roles.items() if name}
        kinds, folder = (("prefill", 4), ("decode", 8)), run_dir / str(number)
        folder.mkdir(mode=0o700)  # Sockets are in it.
        split = Team(loaded, folder, "tcp", *kinds, chunk=chunk, proposers=drafters)
        try:
            for desk in split.desks.values():
                desk.runner.batch.sampling.grammars = like.fresh()
            for prompt, sampling in chosen:
                split.submit(prompt, sampling)
            assert list(split.finish().values()) == expected, (before, after, chunk)
            assert split.state.counters.handoffs and not split.state.counters.failed_transfers
        finally:
            split.close()
