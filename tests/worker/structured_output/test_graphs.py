"""Grammars beside replayed decode steps, planned ahead or not, in one worker or in two: the tokens
of eager steps, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_scheduler.disaggregation import handoff
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.replayed_steps import replaying
from tests.fakes.worker_pairs import Team
from tests.support.worker.constrained_rows import PLAIN, Jumping, constraints, logs, samplings
from tests.support.worker.scheduled_engine import STORY


@pytest.fixture(scope="module")
def stepping(stories: Path, vocabulary: Vocabulary) -> StructuredOutputManager:
    return constraints(stories, vocabulary, jump_ahead=False)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel, stepping: StructuredOutputManager) -> Jumping:
    """Token by token, eagerly, a plan for every step, each after the result of the one before."""
    one = Jumping(loaded, stepping, PLAIN)
    logs(one, samplings())
    return one


@pytest.mark.row("F10.07")
@pytest.mark.parametrize("jump_ahead", [False, True])
@pytest.mark.parametrize(("depth", "max_steps"), [(1, 1), (2, 1), (4, 8)])
def test_with_and_without_overlap(
    loaded: LoadedModel,
    stories: Path,
    vocabulary: Vocabulary,
    expected: Jumping,
    depth: int,
    max_steps: int,
    jump_ahead: bool,
) -> None:
    like = constraints(stories, vocabulary, jump_ahead=jump_ahead)
    one = Jumping(
        loaded, like, SchedulerOptions(plans_in_flight=depth, max_steps_per_plan=max_steps)
    )
    counts = replaying(one.runner, loaded.model)
    assert logs(one, samplings()) == list(expected.logs.values())
    # A step in which somebody jumps is none of one token per row.
    assert counts.replays > len(one.results) * (0.1 if jump_ahead else 0.9)
    for handle, told in expected.logprobs.items():
        assert [rank for _, rank, _ in one.logprobs[handle]] == [rank for _, rank, _ in told]
        ours = [chosen for chosen, *_ in one.logprobs[handle]]
        assert ours == pytest.approx([chosen for chosen, *_ in told], abs=1e-5)


@pytest.mark.row("F10.07")
def test_prefill_in_one_worker_and_replayed_decode_in_another(
    loaded: LoadedModel,
    stepping: StructuredOutputManager,
    expected: Jumping,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handoff, "_LEAST_PART", 8)
    split = Team(loaded, run_dir, "tcp", ("prefill", 4), ("decode", 8))
    try:
        counts = {}
        for name, desk in split.desks.items():
            desk.runner.batch.sampling.grammars = stepping.fresh()
            counts[name] = replaying(desk.runner, loaded.model)
        for number, sampling in enumerate(samplings()):
            split.submit(STORY[: 3 + number % 4], sampling)
        assert list(split.finish().values()) == list(expected.logs.values())
        assert split.state.counters.handoffs >= len(samplings()) - 1
        assert not split.state.counters.failed_transfers
        assert counts["decode-1"].replays > 20
    finally:
        split.close()
