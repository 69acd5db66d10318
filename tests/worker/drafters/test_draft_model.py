"""Drafts of a model: what they are, what they cost, and that its KV follows the log."""

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
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.drafters.draft_model import DraftModelProposer
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import DraftRequest, DraftSampler, Tokens
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.support import tiny_models
from tests.support.worker.constrained_rows import PLAIN, Jumping, constraints, logs, samplings
from tests.support.worker.proposers import MostProbable, context
from tests.support.worker.scheduled_engine import DEVICE, STORY, House, busy

CPU = BuildContext(DEVICE, torch.float32)
CONFIG = SpeculativeConfig(4, "draft_model", "it is loaded already")


class Misled(DraftModelProposer):
    """Every third draft is changed on its way, so that the target goes on otherwise."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.right, self._count = 0, 0

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        made = [drafts.copy() for drafts in super().propose(requests, sampler)]
        for drafts in made:
            wrong = [i for i in range(len(drafts)) if (self._count + i) % 3 == 2]
            self._count += len(drafts)
            drafts[wrong] = 3 + (drafts[wrong] + 1) % 200
            self.right += wrong[0] if wrong else len(drafts)
        return made


def drafted_by(
    drafter: LoadedModel, kind: type[DraftModelProposer] = DraftModelProposer, **sizes: int
) -> DraftModelProposer:
    weights = DraftModelWeights(0, drafter, CPU)
    proposer = kind(context(CONFIG, replace(drafter, drafter=weights), **sizes))
    proposer._chunk = 1024  # Whatever this machine has measured.
    return proposer


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, CPU)


@pytest.fixture(scope="module")
def rounded(stories: Path) -> LoadedModel:
    """The same model in four bits: it is often right."""
    return load_model(stories, replace(CPU, quantization="int4"))


def accepted(house: House) -> tuple[int, int]:
    return (
        sum(sum(result.drafted) for result in house.results),
        sum(sum(result.accepted) for result in house.results),
    )


@pytest.mark.row("F08.01", "F08.12")
def test_no_drafter_changes_a_token(loaded: LoadedModel, rounded: LoadedModel) -> None:
    """Chunks of prompts, preempted and swapped sequences, shared prompts, few pages of drafts."""
    expected = busy(House(loaded, PLAIN))
    for options, sizes, pages in (
        ({"plans_in_flight": 1, "max_steps_per_plan": 1}, {}, 400),
        ({"plans_in_flight": 4, "max_steps_per_plan": 8, "max_num_batched_tokens": 16}, {}, 400),
        ({"max_steps_per_plan": 1}, {"num_pages": 28}, 28),
        ({}, {"num_pages": 20, "host_pages": 100}, 12),
    ):
        proposer = drafted_by(rounded, num_pages=pages)
        house = House(loaded, SchedulerOptions(**options), proposer=proposer, **sizes)  # type: ignore[arg-type]
        assert busy(house) == expected, (options, sizes)
        drafted, right = accepted(house)
        assert 0.3 * drafted < right < drafted
        for slot in range(8):  # The last release waits for a plan.
            proposer.release(slot)
        assert proposer._kv._pool.num_available == pages, "a page was not returned"


@pytest.mark.row("F08.01")
def test_the_target_as_its_own_drafter_is_always_right(loaded: LoadedModel, stories: Path) -> None:
    """With the request's noise, parameters and grammar; and after each wrong draft it goes on."""
    vocabulary = Vocabulary.read(stories, loaded.vocab_size)
    like = constraints(stories, vocabulary, jump_ahead=False)
    plain = Jumping(loaded, like, PLAIN)
    expected = logs(plain, samplings())
    for kind in (DraftModelProposer, Misled):
        proposer = drafted_by(loaded, kind)
        house = Jumping(loaded, like, SchedulerOptions(), proposer=proposer)
        assert logs(house, samplings()) == expected
        drafted, right = accepted(house)
        assert drafted > 50
        if isinstance(proposer, Misled):
            assert right == proposer.right
        else:
            assert right == drafted


DRAFTERS = (
    "Gemma3ForCausalLM",
    "DeepseekV3ForCausalLM",
    "BambaForCausalLM",
    "Qwen3NextForCausalLM",
)
"""Windows, latent attention, and every kind of state."""


@pytest.mark.row("F08.01", "F08.12")
def test_windows_latents_and_states_of_a_drafter_follow_the_log(tmp_path: Path) -> None:
    prompts = [[2 + (7 * i * i + n) % 300 for i in range(5 + 12 * n)] for n in range(3)]
    for architecture in DRAFTERS:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            tiny_models.save_checkpoint(tmp_path / architecture, architecture)
        model = load_model(tmp_path / architecture, CPU)
        proposer = drafted_by(model, Misled)
        assert isinstance(proposer, Misled)
        logs = []
        for drafting in ({}, {"proposer": proposer}):
            house = House(model, num_pages=100, **drafting)  # type: ignore[arg-type]
            for prompt in prompts:
                house.submit(prompt, Sampling(20, seed=7, temperature=0.8))
            logs.append(list(house.finish().values()))
        drafted, right = accepted(house)
        assert logs[0] == logs[1] and right == proposer.right < drafted, architecture


def asked(slot: int, length: int, most: int = 3, group: bytes = b"") -> DraftRequest:
    tokens = np.array([STORY[i % len(STORY)] + i // len(STORY) for i in range(length)], np.int32)
    return DraftRequest(slot, tokens, most, group)


@pytest.mark.row("F08.01")
def test_a_long_prompt_catches_up_in_chunks_and_nobody_waits(loaded: LoadedModel) -> None:
    proposer, sampler = drafted_by(loaded), MostProbable()
    proposer._chunk = 16
    assert [len(d) for d in proposer.propose([asked(0, 5)], sampler)] == [3]
    steps = 0
    while not len((made := proposer.propose([asked(1, 60), asked(0, 5)], sampler))[0]):
        assert len(made[1]) == 3
        steps += 1
    assert steps == 3, "16, 32, 48 and 60 tokens"
    # The next sequence of the group finds its blocks, one of another group does not.
    proposer.release(1)
    assert len(proposer.propose([asked(2, 60)], sampler)[0]) == 3
    assert not len(proposer.propose([asked(3, 60, group=b"other")], sampler)[0])
    # What takes more steps than there are tokens to come does not begin.
    ending = asked(6, 60, group=b"ending")._replace(remaining=3)
    assert not len(proposer.propose([ending], sampler)[0]) and not proposer._kv.computed[6]
    # The row that lacks least is first.
    rows = proposer.propose([asked(4, 70, group=b"new"), asked(5, 12, group=b"new")], sampler)
    assert [len(drafts) for drafts in rows] == [0, 3]


@pytest.mark.row("F08.01")
def test_rows_draft_as_they_do_alone_and_no_further_than_the_drafter_knows(
    loaded: LoadedModel,
) -> None:
    sampler = MostProbable()
    together = drafted_by(loaded).propose([asked(n, 6 + 5 * n, 1 + n) for n in range(4)], sampler)
    for n, drafts in enumerate(together):
        [alone] = drafted_by(loaded).propose([asked(0, 6 + 5 * n, 1 + n)], sampler)
        assert drafts.tolist() == alone.tolist() and len(drafts) == 1 + n
    short = drafted_by(replace(loaded, max_length=20))
    made = short.propose([asked(n, 18 + n) for n in range(4)], sampler)
    assert [len(drafts) for drafts in made] == [3, 2, 1, 0]


@pytest.mark.row("F08.01")
def test_a_drafter_without_pages_or_with_broken_numbers_drafts_nothing(
    loaded: LoadedModel,
) -> None:
    proposer, sampler = drafted_by(loaded, num_pages=4), MostProbable()
    made = proposer.propose([asked(0, 6), asked(1, 6, group=b"b")], sampler)
    assert [len(drafts) for drafts in made] == [3, 3]
    assert not len(proposer.propose([asked(2, 6, group=b"c")], sampler)[0])
    for slot in range(3):
        proposer.release(slot)

    class Broken:
        def sample(self, logits: torch.Tensor, slots: Any) -> Tokens:
            return np.full(len(slots), -1, np.int32)

    bare = drafted_by(loaded, num_pages=4)
    inner = bare._run._model.forward
    bare._run._model.forward = lambda *given: inner(*given) * torch.nan  # type: ignore[method-assign,assignment]
    try:
        assert not len(bare.propose([asked(0, 6)], Broken())[0])
    finally:
        bare._run._model.forward = inner  # type: ignore[method-assign]
    assert not len(bare.propose([asked(0, 7)], sampler)[0]), "this sequence has no drafts any more"
    assert bare._kv._suspect == set()
    bare.release(0)
    assert bare._kv._suspect
    assert len(bare.propose([asked(0, 15)], sampler)[0]) == 2, "its pages are clean"
    assert not bare._kv._suspect
