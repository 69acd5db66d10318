"""Steps of a real small model: golden tokens, and a log that no circumstance changes."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from baton.protocol import NewSequence, Plan, Sampling, Submit, Tokens, WorkerInfo
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import (
    Arrived,
    Decision,
    Dispatch,
    Reply,
    Settled,
    Tick,
    WorkerJoined,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.forward.causal_forward import CausalForward, CausalModel
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.media_embeddings import MediaEmbeddings
from tests.fakes.scheduler_planner import (
    Planner,
    Sequence,
    entries,
    run_all,
)
from tests.support.worker.runner_cases import (
    DEVICE,
    NUM_PAGES,
    PAGE_SIZE,
    STORY,
    VARIED,
    planner_of,
    varied,
)


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


@pytest.fixture
def planner(loaded: LoadedModel) -> Planner:
    return planner_of(loaded)


def golden(assets: Path) -> list[dict[str, list[float]]]:
    text = (assets / "stories260k" / "golden_greedy.json").read_text()
    cases: list[dict[str, list[float]]] = json.loads(text)["cases"]
    return cases


def greedy(case: dict[str, list[float]]) -> Sequence:
    sampling = Sampling(len(case["output_ids"]), temperature=0.0, logprobs=0)
    return Sequence([int(t) for t in case["prompt_ids"]], sampling)


@pytest.mark.row("F09.01", "F09.10", "F09.13")
@pytest.mark.parametrize("together", [False, True])
def test_golden_greedy(assets: Path, planner: Planner, together: bool) -> None:
    cases = golden(assets)
    sequences = [greedy(case) for case in cases]
    for group in [sequences] if together else [[s] for s in sequences]:
        run_all(planner, group)
    for sequence, case in zip(sequences, cases, strict=True):
        assert sequence.log == case["output_ids"]
        assert sequence.chosen == pytest.approx(case["logprobs"], abs=2e-4)
        assert set(sequence.ranks) == {1}


@pytest.fixture(scope="module")
def alone(loaded: LoadedModel) -> list[list[int]]:
    """The logs of `varied`, each sequence run with nobody else."""
    return [run_all(planner_of(loaded), [sequence])[0] for sequence in varied()]


@pytest.mark.row("F09.02", "F09.03", "F09.04", "F09.05", "F09.07", "F09.08", "F09.09")
@pytest.mark.row("F09.06", "F09.15")
def test_same_tokens_in_a_batch(planner: Planner, alone: list[list[int]]) -> None:
    assert run_all(planner, varied()) == alone
    assert all(len(log) == s.max_tokens for log, s in zip(alone, VARIED, strict=True))


def test_same_tokens_while_others_join_and_leave(planner: Planner, alone: list[list[int]]) -> None:
    sequences = varied()
    for sequence in sequences:
        planner.add(sequence)
        passer = planner.add(Sequence([1, 403], Sampling(2, seed=99)))
        planner.step()
        planner.step()
        assert passer.over
    planner.finish()
    assert [sequence.log for sequence in sequences] == alone


@pytest.mark.row("F13.04")
@pytest.mark.parametrize("chunk", [1, 7])
def test_same_tokens_with_chunked_prefill(
    loaded: LoadedModel, alone: list[list[int]], chunk: int
) -> None:
    assert run_all(planner_of(loaded, chunk=chunk), varied()) == alone


@pytest.mark.row("F13.05")
def test_same_tokens_after_preemption(loaded: LoadedModel, alone: list[list[int]]) -> None:
    planner, sequences = planner_of(loaded, chunk=7), varied()
    for sequence in sequences:
        planner.add(sequence)
    turn = 0
    while planner.running:
        planner.step()
        turn += 1
        victim = sequences[turn % len(sequences)]
        if turn % 5 == 0 and not victim.over:
            planner.remove(victim)
            planner.step()
            planner.add(victim)
    assert [sequence.log for sequence in sequences] == alone


def test_same_tokens_on_another_worker(loaded: LoadedModel, alone: list[list[int]]) -> None:
    sequences, first = varied(), planner_of(loaded)
    for sequence in sequences:
        first.add(sequence)
    for _ in range(10):
        first.step()
    assert run_all(planner_of(loaded), sequences) == alone


@pytest.mark.row("F09.10")
def test_logprobs_are_of_the_raw_logits(loaded: LoadedModel) -> None:
    sampling = Sampling(12, seed=8, temperature=0.5, logprobs=5, logit_bias={300: 40.0})
    sequence = Sequence(STORY, sampling)
    run_all(planner_of(loaded), [sequence])
    values = reference_logprobs(loaded, STORY + sequence.log)[len(STORY) - 1 :]
    for row, (token, chosen, rank, top) in enumerate(
        zip(sequence.log, sequence.chosen, sequence.ranks, sequence.tops, strict=True)
    ):
        assert chosen == pytest.approx(values[row, token].item(), abs=1e-4)
        assert rank == int((values[row] > values[row, token]).sum()) + 1
        assert [t for t, _ in top] == values[row].topk(5).indices.tolist()
        assert [v for _, v in top] == pytest.approx(values[row].topk(5).values.tolist(), abs=1e-4)


@pytest.mark.row("F09.10")
@pytest.mark.parametrize("chunk", [4, 100])
def test_prompt_logprobs(loaded: LoadedModel, chunk: int) -> None:
    sequence = Sequence(STORY, Sampling(1, temperature=0.0, prompt_logprobs=2))
    other = Sequence(STORY[:3], Sampling(3, temperature=0.0))
    run_all(planner_of(loaded, chunk=chunk), [other, sequence])
    values = reference_logprobs(loaded, STORY)
    described = [
        (part.start + row, chosen, top)
        for part in sequence.prompt_logprobs
        for row, chosen, _, top in entries(part.columns)
    ]
    assert [position for position, *_ in described] == list(range(1, len(STORY)))
    for position, chosen, top in described:
        before = values[position - 1]
        assert chosen == pytest.approx(before[STORY[position]].item(), abs=1e-4)
        assert [token for token, _ in top] == before.topk(2).indices.tolist()


def reference_logprobs(loaded: LoadedModel, tokens: list[int]) -> Tensor:
    """Log-softmax at every position, [T, vocab], in one pass without chunks."""
    pages = -(-len(tokens) // PAGE_SIZE)
    cache = KVCache(loaded.spec, pages, PAGE_SIZE, dtype=torch.float32, device=DEVICE)
    batch = AttentionBatch.build([len(tokens)], [0], [list(range(pages))], PAGE_SIZE, DEVICE)
    hidden = loaded.model.forward(torch.tensor(tokens), torch.arange(len(tokens)), batch, cache)
    return loaded.model.logits(hidden).log_softmax(1)


@pytest.mark.row("F09.08")
def test_a_strong_frequency_penalty_never_repeats(planner: Planner) -> None:
    sampling = Sampling(60, temperature=0.0, frequency_penalty=100.0)
    (log,) = run_all(planner, [Sequence(STORY, sampling)])
    assert len(set(log)) == len(log)


def test_stop_id_ends_a_sequence_but_not_before_min_tokens(assets: Path, planner: Planner) -> None:
    case = golden(assets)[1]
    output = [int(token) for token in case["output_ids"]]
    stop = output[5]
    first = output.index(stop)
    early = Sequence([int(t) for t in case["prompt_ids"]], Sampling(40, 0, 0.0, stop_ids=(stop,)))
    late = Sequence(
        early.prompt, Sampling(40, temperature=0.0, stop_ids=(stop,), min_tokens=first + 4)
    )
    run_all(planner, [early, late])
    assert early.log == output[: first + 1] and early.finish == "stop"
    assert stop not in late.log[: first + 4] and len(late.log) > first + 4


@pytest.mark.row("F09.15")
def test_rules_hold_for_the_whole_log(alone: list[list[int]]) -> None:
    allowed, ruled = alone[9], alone[10]
    assert set(allowed) <= set(range(260, 300))
    assert 261 not in ruled and (3, 432) not in set(pairwise(ruled))
    grams = list(pairwise(ruled))
    assert len(grams) == len(set(grams)) == 39


def test_a_row_without_a_possible_token_fails_alone(
    planner: Planner, alone: list[list[int]]
) -> None:
    sequences = varied()
    nothing = Sequence(STORY, Sampling(5, allowed_ids=(7,), bad_words=((7,),), logprobs=1))
    unknown = Sequence(STORY, Sampling(5, processors={"other": "1"}))
    run_all(planner, [nothing, *sequences, unknown])
    assert "no token" in nothing.failure and "Unknown processors" in unknown.failure
    assert [s.log for s in sequences] == alone


def test_rows_of_a_stopped_sequence_in_flight_are_skipped(assets: Path, planner: Planner) -> None:
    """Plan k+1 is sent before result k: its row for a sequence that stopped in k runs nothing."""
    case = golden(assets)[1]
    first = int(case["output_ids"][0])
    prompt = [int(t) for t in case["prompt_ids"]]
    stopping = planner.add(Sequence(prompt, Sampling(9, 0, 0.0, stop_ids=(first,))))
    going = planner.add(Sequence(prompt, Sampling(9, temperature=0.0)))
    plans = [planner.plan()]
    for sequence in (stopping, going):
        sequence.log.append(0)  # the planner only counts; the worker has the token
    plans.append(planner.plan())
    for sequence in (stopping, going):
        sequence.log.clear()
    results = [planner.target.step(plan) for plan in plans]
    assert results[0].finished == {stopping.slot: "stop"}
    assert results[1].rows == pack([going.slot], "I")
    assert results[1].tokens == pack([int(case["output_ids"][1])])


class Poisoned:
    """A model whose hidden states are NaN for one token, and whose logits are for another."""

    def __init__(self, model: CausalModel, hidden: int, logits: int) -> None:
        self._model, self._hidden, self._logits = model, hidden, logits

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        hidden = self._model.forward(tokens, positions, batch, cache, texts, media)
        hidden[tokens == self._hidden] = torch.nan
        hidden[tokens == self._logits] = 3e38
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.logits(hidden)
        logits[(hidden == 3e38).all(1)] = torch.nan
        return logits


def test_a_row_that_is_not_finite_fails_alone(loaded: LoadedModel, alone: list[list[int]]) -> None:
    planner = planner_of(loaded, Poisoned(loaded.model, hidden=500, logits=501))
    sequences = varied()
    broken = [Sequence([1, 500], Sampling(5)), Sequence([501], Sampling(5, logprobs=2))]
    run_all(planner, [broken[0], *sequences, broken[1]])
    assert [sequence.log for sequence in sequences] == alone
    for sequence in broken:
        assert "not finite" in sequence.failure and not sequence.log


def test_a_prefill_chunk_that_is_not_finite_fails_before_it_samples(
    loaded: LoadedModel,
) -> None:
    planner = planner_of(loaded, Poisoned(loaded.model, hidden=500, logits=501), chunk=2)
    sequence = planner.add(Sequence([1, 500, 3, 4, 5], Sampling(5)))
    result = planner.step()
    assert list(result.failed) == [sequence.slot] and not planner.running


def test_result_tells_the_index_and_the_duration(planner: Planner) -> None:
    planner.add(Sequence([1, 403], Sampling(9, seed=1), log=[407, 261]))
    result = planner.step()
    assert result.first == pack([2], "I") and result.counts == b"\1"
    assert result.duration_us > 0


def test_a_plan_without_rows_is_answered(planner: Planner) -> None:
    result = planner.step()
    assert (result.step, result.rows, result.tokens) == (1, b"", b"")
    assert np.frombuffer(result.first, np.uint32).size == 0


def scheduled(loaded: LoadedModel, requests: list[list[int]], *, caching: bool) -> Scheduled:
    """Requests one after the other through the scheduler's own plans, with pages of 4 tokens."""
    cache = KVCache(loaded.spec, 64, 4, dtype=torch.float32, device=DEVICE)
    sizes = BatchSizes(8, 256, page_size=4, num_pages=64, vocab_size=loaded.vocab_size)
    batch = InputBatch(sizes)
    runner = ModelRunner(CausalForward(loaded.model, cache, DEVICE), cache, batch)
    state = State(SchedulerOptions(enable_prefix_caching=caching, max_steps_per_plan=1))
    info = WorkerInfo("m", 64, 4, 8, 2048, 256, loaded.vocab_size)
    state.apply(WorkerJoined("w", 1, info))
    done = Scheduled()
    for handle, prompt in enumerate(requests):
        sampling = Sampling(20, seed=handle, temperature=0.8)
        state.apply(Arrived("g", Submit(handle, "r", pack(prompt), sampling)))
        done.logs.append([])
        while not state.idle:
            done.take(state.apply(Tick(0.0)))
            done.take(state.apply(Settled("w", runner.step(done.plans.popleft()))))
    return done


@dataclass
class Scheduled:
    """What a scheduler said to its gateway."""

    logs: list[list[int]] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)
    plans: deque[Plan] = field(default_factory=deque)

    def take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self.plans.append(decision.message)
            elif isinstance(decision, Reply):
                assert isinstance(decision.message, Tokens)
                self.cached |= decision.message.cached
                rows = zip(
                    unpack(decision.message.handles, "I"),
                    unpack(decision.message.tokens),
                    strict=True,
                )
                for handle, token in rows:
                    self.logs[handle].append(token)


@pytest.mark.row("F12.02", "F12.04")
def test_a_prefix_hit_changes_no_token(loaded: LoadedModel) -> None:
    first = scheduled(loaded, [STORY], caching=False).logs[0]
    turn = STORY + first + STORY[1:4]
    # The same prompt, a next turn, a fork of it, then so much else that old pages are evicted.
    others = [[1, 300 + i, *STORY, *STORY[1:], *STORY[1:]] for i in range(6)]
    requests = [STORY, STORY, turn, turn[:17] + STORY[2:5], turn, *others, turn]
    plain = scheduled(loaded, requests, caching=False)
    cached = scheduled(loaded, requests, caching=True)
    assert cached.logs == plain.logs and all(len(log) == 20 for log in plain.logs)
    assert plain.cached == {}
    # All but the last token, up to where a prompt forks; a next turn finds the answer too.
    assert [cached.cached.get(i, 0) for i in (0, 1, 3, 4)] == [0, 9, 17, 32]
    assert cached.cached[2] >= 24


def test_a_copied_page_serves_as_well(loaded: LoadedModel) -> None:
    planner = planner_of(loaded)
    original = planner.add(Sequence(STORY, Sampling(6, seed=3)))
    planner.step()
    page, copy = original.pages[0], NUM_PAGES - 1
    new = NewSequence(5, pack(STORY), len(STORY), Sampling(6, seed=4), num_computed=9)
    row = {"rows": pack([5], "I"), "num_scheduled": pack([1], "I"), "samples": b"\1"}
    planner.steps += 1
    result = planner.target.step(
        Plan(
            epoch=0,
            step=planner.steps,
            num_computed=pack([9], "I"),
            new_sequences=(new,),
            page_rows=pack([5], "I"),
            page_counts=pack([1], "I"),
            pages=pack([copy], "I"),
            copy_from=pack([page], "I"),
            copy_to=pack([copy], "I"),
            **row,
        )
    )
    alone = run_all(planner_of(loaded), [Sequence(STORY, Sampling(1, seed=4))])
    assert unpack(result.tokens).tolist() == alone[0]
    planner.finish()
    assert original.log == run_all(planner_of(loaded), [Sequence(STORY, Sampling(6, seed=3))])[0]


@pytest.mark.parametrize(("source", "target"), [([0], []), ([NUM_PAGES], [0]), ([0], [NUM_PAGES])])
def test_a_bad_copy_is_refused(planner: Planner, source: list[int], target: list[int]) -> None:
    columns = {"copy_from": pack(source, "I"), "copy_to": pack(target, "I")}
    with pytest.raises(PlanError, match="cop"):
        planner.target.step(Plan(0, 1, b"", b"", b"", b"", **columns))
