"""Speculation changes no token, whatever is guessed and however the scheduler plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton.protocol import Sampling
from baton.protocol.token_columns import pack
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.ngram import NgramProposer
from baton_worker.speculative.suffix import SuffixProposer
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.worker_pairs import Team
from tests.support import tiny_models
from tests.support.worker.constrained_rows import PLAIN, Jumping, constraints, logs, samplings
from tests.support.worker.proposers import HalfRight, context
from tests.support.worker.scheduled_engine import DEVICE, STORY, House, busy, varied

PROMPTS = [STORY[: 3 + i] for i in range(4)] + [STORY[i:] for i in range(4)]
"""Those of `busy`, in its order."""


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[list[int]]:
    return busy(House(loaded, SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)))


def half_right(expected: list[list[int]]) -> HalfRight:
    return HalfRight([p + log for p, log in zip(PROMPTS, expected, strict=True)])


def accepted(house: House) -> tuple[int, int]:
    """Drafts and accepted ones of a run."""
    results = house.results
    return sum(sum(r.drafted) for r in results), sum(sum(r.accepted) for r in results)


@pytest.mark.row("F08.12", "F13.10")
def test_no_way_of_planning_changes_a_token(loaded: LoadedModel, expected: list[list[int]]) -> None:
    """Chunks of prompts, several steps and plans in flight, preempted, swapped out and back."""
    for options, sizes in (
        ({"plans_in_flight": 1, "max_steps_per_plan": 1}, {}),
        ({"max_steps_per_plan": 8}, {}),
        ({"plans_in_flight": 4, "max_steps_per_plan": 8, "max_num_batched_tokens": 16}, {}),
        ({"max_steps_per_plan": 1}, {"num_pages": 28}),
        ({}, {"num_pages": 20, "host_pages": 100}),
    ):
        proposer = half_right(expected)
        house = House(loaded, SchedulerOptions(**options), proposer=proposer, **sizes)  # type: ignore[arg-type]
        assert busy(house) == expected, (options, sizes)
        drafted, right = accepted(house)
        assert 0 < right < drafted and proposer.released
        counters = house.state.counters
        # One of the sequences is aborted: what a step in flight has drafted for it counts no more.
        assert drafted - 15 <= counters.num_draft_tokens <= drafted
        assert right - 15 <= sum(counters.num_accepted_tokens_per_pos) <= right
        assert counters.num_accepted_tokens_per_pos == sorted(
            counters.num_accepted_tokens_per_pos, reverse=True
        )
        if sizes:
            assert house.state.counters.preemptions > 0
        worker = house.state.fleet.get("w")
        assert worker is not None and not worker.pool.num_held, "a page was not returned"


@pytest.mark.row("F08.12")
def test_accepted_drafts_save_steps(loaded: LoadedModel) -> None:
    one = House(loaded, SchedulerOptions())
    handle = one.submit(STORY, Sampling(60, temperature=0.0))
    log = one.finish()[handle]
    knowing = HalfRight([STORY + log])
    other = House(loaded, SchedulerOptions(), proposer=knowing)
    other.submit(STORY, Sampling(60, temperature=0.0))
    assert other.finish()[0] == log
    steps = [sum(bool(result.tokens) for result in house.results) for house in (one, other)]
    assert steps[1] < 0.6 * steps[0]


@pytest.mark.row("F08.02", "F08.03")
def test_no_method_changes_a_token(loaded: LoadedModel, expected: list[list[int]]) -> None:
    config = SpeculativeConfig(5, prompt_lookup_min=1, suffix_decoding_max_spec_factor=4.0)
    for proposer in (NgramProposer(context(config)), SuffixProposer(context(config))):
        first, again = (House(loaded, proposer=proposer) for _ in range(2))
        for house in (first, again):
            assert busy(house) == expected
            drafted, right = accepted(house)
            assert 0 < right < drafted
        remembered = isinstance(proposer, SuffixProposer)
        assert (right > 0.8 * drafted) == remembered, "it has seen all of this"


@pytest.mark.row("F08.12")
def test_an_expected_output_saves_steps_and_changes_no_token(loaded: LoadedModel) -> None:
    """It is right but for two tokens, and the sequence is continued from a log in its middle."""
    plain = House(loaded)
    plain.submit(STORY, Sampling(60, seed=3, temperature=0.9))
    log = plain.finish()[0]
    said = [*log[:20], 300, *log[21:40], *log[41:]]
    house = House(loaded, proposer=HalfRight())
    sampling = Sampling(60, seed=3, temperature=0.9)
    house.submit(STORY, sampling, prediction=pack(said))
    house.submit(STORY, sampling, log=log[:30], prediction=pack(said))
    assert list(house.finish().values()) == [log, log]
    drafted, right = accepted(house)
    assert right > 0.8 * drafted and right > 60


def test_a_request_may_ask_for_fewer_drafts(loaded: LoadedModel) -> None:
    house = House(loaded, proposer=HalfRight())
    for most in (0, 2):
        house.submit(STORY, Sampling(9, temperature=0.0, num_speculative_tokens=most))
    house.finish()
    assert house.logs[0] == house.logs[1]
    drafts = [drafted for result in house.results for drafted in result.drafted]
    assert max(drafts) == 2 and accepted(house)[0] <= 2 * 8


@pytest.mark.row("F08.12")
def test_a_prompt_is_shared_by_choices_and_what_was_rejected_is_not(loaded: LoadedModel) -> None:
    """Choices wait for the prompt of the first; the next turn of the talk finds what was said."""
    plain, house = House(loaded), House(loaded, proposer=HalfRight())
    for here in (plain, house):
        for sampling in varied():
            here.submit(STORY, sampling, "one")
        here.finish()
        for handle in range(4):
            here.submit(STORY + here.logs[handle] + [5, 6], Sampling(9, temperature=0.0))
        here.finish()
    assert house.logs == plain.logs
    assert house.cached == plain.cached


@pytest.mark.row("F08.12", "F10.07")
def test_grammars_and_log_probabilities_are_those_without(
    loaded: LoadedModel, stories: Path
) -> None:
    vocabulary = Vocabulary.read(stories, loaded.vocab_size)
    for jump_ahead in (False, True):
        like = constraints(stories, vocabulary, jump_ahead=jump_ahead)
        plain = Jumping(loaded, like, PLAIN)
        expected = logs(plain, samplings())
        prompts = [STORY[: 3 + number % 4] for number in range(len(expected))]
        texts = [p + log for p, log in zip(prompts, expected, strict=True)]
        house = Jumping(loaded, like, SchedulerOptions(), proposer=HalfRight(texts))
        assert logs(house, samplings()) == expected
        drafted, right = accepted(house)
        assert 0 < right < drafted
        assert right > drafted / 3, "a draft that the grammar forbids was proposed"
        assert house.logprobs == plain.logprobs, "they are the same to the last bit"


VARIED = (
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.8, "frequency_penalty": 0.5, "presence_penalty": 0.3, "logprobs": 0},
    {"temperature": 0.9, "repetition_penalty": 1.4, "min_p": 0.05, "logit_bias": {261: 2.0}},
    {"temperature": 0.7, "top_k": 8, "bad_words": ((261, 376), (300,))},
    {"temperature": 1.2, "typical_p": 0.8, "allowed_ids": tuple(range(259, 500))},
    {"temperature": 0.6, "processors": {"no_repeat_ngram": '{"size": 2}'}},
    {"temperature": 1.0, "top_p": 0.8, "stop_ids": (286, 261), "min_tokens": 9},
)
"""Everything that has a say in a token."""


@pytest.mark.row("F08.12")
def test_no_parameter_is_refused_and_none_changes_a_token(
    loaded: LoadedModel, stories: Path
) -> None:
    like = StructuredOutputManager(None, loaded.vocab_size)
    asked = [Sampling(48, seed=n, **fields) for n, fields in enumerate(VARIED)]  # type: ignore[arg-type]
    plain = Jumping(loaded, like, PLAIN)
    expected = logs(plain, asked)
    texts = [STORY[: 3 + n % 4] + log for n, log in enumerate(expected)]
    house = Jumping(loaded, like, SchedulerOptions(), proposer=HalfRight(texts))
    assert logs(house, asked) == expected
    assert house.logprobs.keys() == plain.logprobs.keys() == {0, 1}
    drafted, right = accepted(house)
    assert 0 < right < drafted


@pytest.mark.row("F15.04", "F08.12")
def test_a_sequence_is_handed_over_and_another_drafter_goes_on(
    loaded: LoadedModel, expected: list[list[int]], run_dir: Path
) -> None:
    for roles in (("prefill", "decode"), ("prefill",), ("decode",)):
        drafters = {role: half_right(expected) for role in roles}
        split = Team(loaded, run_dir, "tcp", ("prefill", 4), ("decode", 8), proposers=drafters)
        try:
            for prompt, sampling in zip(PROMPTS, varied(28) * 2, strict=True):
                split.submit(prompt, sampling)
            assert list(split.finish().values()) == expected
            assert split.state.counters.handoffs and not split.state.counters.failed_transfers
        finally:
            split.close()


MODELS = (
    "MistralForCausalLM",
    "Gemma3ForCausalLM",
    "DeepseekV3ForCausalLM",
    "MambaForCausalLM",
    "BambaForCausalLM",
    "Qwen3NextForCausalLM",
    "KimiLinearForCausalLM",
    "Lfm2MoeForCausalLM",
    "MiniMaxForCausalLM",
)
"""Windows, latent attention, and every kind of state."""


@pytest.mark.row("F08.12")
@pytest.mark.parametrize("architecture", MODELS)
def test_states_and_windows_go_back_to_the_accepted_token(
    tmp_path: Path, architecture: str
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(tmp_path, architecture)
    model = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    prompts = [[2 + (7 * i * i + n) % 300 for i in range(5 + 12 * n)] for n in range(3)]

    def logs(**drafting: Any) -> tuple[House, list[list[int]]]:
        house = House(model, num_pages=100, **drafting)
        for prompt in prompts:
            house.submit(prompt, Sampling(40, seed=7, temperature=0.8))
        return house, list(house.finish().values())

    _, expected = logs()
    texts = [p + log for p, log in zip(prompts, expected, strict=True)]
    house, same = logs(proposer=HalfRight(texts))
    drafted, right = accepted(house)
    assert same == expected and 0 < right < drafted
