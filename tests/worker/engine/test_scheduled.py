"""The scheduler's own plans on a real small model: no way of scheduling changes a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.protocol import (
    Plan,
    Sampling,
)
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_table import flat
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import (
    LayerGroups,
    group_bytes,
    one_group,
    page_groups,
)
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import (
    DEVICE,
    STORY,
    House,
    busy,
    varied,
)


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


def alone(loaded: LoadedModel, prompt: list[int], samplings: list[Sampling]) -> list[list[int]]:
    """Each with nobody else, step by step, nothing cached."""
    plain = SchedulerOptions(enable_prefix_caching=False, plans_in_flight=1, max_steps_per_plan=1)
    logs = []
    for sampling in samplings:
        house = House(loaded, plain)
        house.submit(prompt, sampling)
        logs.append(house.finish()[0])
    return logs


@pytest.mark.row("F12.03")
@pytest.mark.parametrize("length", [2, 4, 5, 7, 8, 10])
def test_choices_that_share_a_prompt_get_the_tokens_of_separate_ones(
    loaded: LoadedModel, length: int
) -> None:
    prompt, samplings = STORY[:length], varied()
    house = House(loaded)
    for sampling in samplings:
        house.submit(prompt, sampling, "one")
    house.finish()
    assert list(house.logs.values()) == alone(loaded, prompt, samplings)
    prefilled = [plan for plan in house.sent if plan.new_sequences]
    assert sum(sum(unpack(plan.num_scheduled, "I")) for plan in prefilled[:1]) == length
    assert house.cached == dict.fromkeys(range(1, 4), length - 1)
    copied = sum(len(plan.copy_to) // 4 for plan in house.sent)
    assert copied == (3 if (length - 1) % 4 else 0)


def beams(house: House) -> list[list[int]]:
    """Three beams for ten steps, each continued twice from logs that part in mid-page: by the
    token that is most probable, and by another one."""
    logs: list[list[int]] = [[]]
    for _ in range(10):
        handles = [
            house.submit(STORY, Sampling(len(log) + 1, temperature=0.0), log=log) for log in logs
        ]
        house.finish()
        best = [house.logs[handle] for handle in handles]
        logs = [log for one in best for log in (one, [*one[:-1], (one[-1] + 7) % 500])][:3]
    return logs


@pytest.mark.row("F12.03")
def test_beams_that_part_share_pages_and_copy_tails(loaded: LoadedModel) -> None:
    plain = House(loaded, SchedulerOptions(enable_prefix_caching=False, max_steps_per_plan=1))
    house = House(loaded)
    assert beams(house) == beams(plain)
    assert sum(len(plan.copy_to) // 4 for plan in house.sent) > 10
    computed = [
        sum(sum(unpack(plan.num_scheduled, "I")) for plan in h.sent) for h in (house, plain)
    ]
    assert computed[0] < computed[1] / 3


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[list[int]]:
    """The logs of `busy`: a plan for every step, and each after the result of the one before."""
    return busy(House(loaded, SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)))


def test_plans_of_several_steps_change_no_token(
    loaded: LoadedModel, expected: list[list[int]]
) -> None:
    for max_steps in (5, 64):
        house = House(loaded, SchedulerOptions(max_steps_per_plan=max_steps))
        assert busy(house) == expected
        assert len(house.sent) < len(house.results)
    assert any(result.truncated_at for result in house.results), "none of up to 64 steps was cut"


@pytest.mark.row("F13.08")
@pytest.mark.parametrize(("depth", "max_steps"), [(1, 8), (2, 1), (4, 8)])
def test_planning_ahead_of_results_changes_no_token(
    loaded: LoadedModel, expected: list[list[int]], depth: int, max_steps: int
) -> None:
    assert (
        busy(House(loaded, SchedulerOptions(plans_in_flight=depth, max_steps_per_plan=max_steps)))
        == expected
    )


def test_the_gap_before_a_step_is_told_while_there_is_work(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10**6, 2))  # Every look at it is 2 s later: a step, or a gap.
    monkeypatch.setattr(
        "baton_worker.engine.model_runner.time.perf_counter", lambda: float(next(clock))
    )
    house = House(loaded, SchedulerOptions(max_steps_per_plan=1))
    house.submit(STORY, Sampling(5, temperature=0.0))
    house.finish()
    house.turn()
    house.submit(STORY, Sampling(2, temperature=0.0))
    house.finish()
    assert {result.duration_us for result in house.results} == {2_000_000}
    gaps = [result.gap_us for result in house.results]
    # The first step had nothing before it; the one that only releases ran no row; then the worker
    # was idle for want of work.
    assert gaps == [0, 2_000_000, 2_000_000, 2_000_000, 2_000_000, 0, 0, 2_000_000]
    assert house.state.fleet.get("w").gap_ms > 0  # type: ignore[union-attr]


def test_pages_run_short_and_no_token_changes(
    loaded: LoadedModel, expected: list[list[int]]
) -> None:
    house = House(loaded, num_pages=30)
    assert busy(house) == expected and house.state.counters.preemptions > 0


def swapped_in(house: House) -> int:
    return sum(len(plan.swap_in) // 8 for plan in house.sent)


@pytest.mark.row("F12.08", "F13.05")
@pytest.mark.parametrize("host_pages", [6, 100])
def test_pages_that_were_in_host_memory_change_no_token(
    loaded: LoadedModel, expected: list[list[int]], host_pages: int
) -> None:
    house = House(loaded, num_pages=20, host_pages=host_pages)
    assert busy(house) == expected and house.state.counters.preemptions > 0
    assert any(plan.swap_out for plan in house.sent)
    assert host_pages == 6 or swapped_in(house) > 0


@pytest.mark.row("F12.10")
def test_pages_head_by_head_change_no_token(stories: Path, expected: list[list[int]]) -> None:
    """Copied when sequences part, swapped out when room is short, and back."""
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32, layout=Layout.HND))
    house = House(loaded, num_pages=20, host_pages=100, layout=Layout.HND)
    assert busy(house) == expected and swapped_in(house) > 0
    shared = House(loaded, layout=Layout.HND)
    for sampling in varied():
        shared.submit(STORY[:7], sampling, "one")
    assert list(shared.finish().values()) == alone(loaded, STORY[:7], varied())
    assert any(plan.copy_to for plan in shared.sent)


@pytest.mark.row("F12.08")
def test_a_prompt_that_was_swapped_out_is_not_computed_again(loaded: LoadedModel) -> None:
    prompt, other = STORY * 4, [300 + i for i in range(100)]
    [expected] = alone(loaded, prompt, [Sampling(20, temperature=0.0)])
    house = House(loaded, num_pages=32, host_pages=50)
    for tokens in (prompt, other, prompt):
        handle = house.submit(tokens, Sampling(20, temperature=0.0))
        house.finish()
    assert house.logs[handle] == expected and house.cached[handle] == 36
    assert swapped_in(house) > 0


@pytest.mark.parametrize(
    "columns",
    [
        {"swap_out": [0]},
        {"swap_out": [64, 0]},
        {"swap_out": [0, 9]},
        {"swap_in": [9, 0]},
        {"swap_in": [0, 64]},
    ],
)
def test_a_bad_swap_is_refused(loaded: LoadedModel, columns: dict[str, list[int]]) -> None:
    house = House(loaded, host_pages=9)
    packed = {name: pack(numbers, "I") for name, numbers in columns.items()}
    with pytest.raises(PlanError, match="swaps"):
        house.runner.step(Plan(1, 1, b"", b"", b"", b"", **packed))


def test_a_swap_without_host_memory_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(PlanError, match="not of this worker"):
        plan = Plan(1, 1, b"", b"", b"", b"", swap_out=pack([0, 0], "I"))
        House(loaded).runner.step(plan)


class Windowed(House):
    """A house that takes notes of the most pages that a sequence holds behind its tenth token."""

    def __init__(
        self, loaded: LoadedModel, limits: SchedulerOptions | None = None, **sizes: int
    ) -> None:
        super().__init__(loaded, limits, **sizes)
        self.most_held = 0

    def turn(self) -> None:
        super().turn()
        worker = self.state.fleet.get("w")
        assert worker is not None
        late = np.flatnonzero((worker.batch.lease_id > 0) & (worker.batch.generated > 10))
        self.most_held = max(
            [self.most_held, *(len(flat(worker.batch.tables(slot))) for slot in late)]
        )


class Windows:
    """A tiny model with layers that see a window, Mistral's of 12, and what transformers makes of
    it with a dense mask."""

    def __init__(self, folder: Path, architecture: str, **changes: Any) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.oracle: Any = tiny_models.save_checkpoint(folder, architecture, **changes)
        self.loaded = load_model(folder, BuildContext(DEVICE, torch.float32))

    @torch.inference_mode()
    def would_say(self, prompt: list[int], log: list[int]) -> list[int]:
        """The most probable token behind the prompt and behind each token of the log."""
        logits = self.oracle(torch.tensor([prompt + log])).logits[0]
        tokens: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        return tokens


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Windows:
    return Windows(tmp_path_factory.mktemp("mistral"), "MistralForCausalLM")


def greedy(length: int) -> Sampling:
    return Sampling(length, temperature=0.0)


PROMPTS = [[2 + (7 * i * i + number) % 300 for i in range(5 + 12 * number)] for number in range(4)]


@pytest.mark.row("F04.11")
@pytest.mark.parametrize("max_steps", [1, 8])
@pytest.mark.parametrize("caching", [True, False])
def test_pages_before_the_window_are_free_and_the_text_is_that_of_a_dense_mask(
    mistral: Windows, max_steps: int, caching: bool
) -> None:
    limits = SchedulerOptions(max_steps_per_plan=max_steps, enable_prefix_caching=caching)
    house = Windowed(mistral.loaded, limits, num_pages=48)
    for prompt in PROMPTS:
        house.submit(prompt, greedy(140))
    house.finish()
    for prompt, log in zip(PROMPTS, house.logs.values(), strict=True):
        assert len(log) == 140 and log == mistral.would_say(prompt, log)
    # Of 181 tokens on 46 pages of 4, they hold the window, what is in flight and the ends.
    assert house.most_held <= (12 + 2 * max_steps) // 4 + 2
    assert house.state.counters.preemptions == 0, "all four fit at once only like that"


def two_turns(house: Windowed, reference: Windows) -> None:
    """Four conversations, some of which begin alike: every log is what the reference would say."""
    prompts = [PROMPTS[1], PROMPTS[2], PROMPTS[2], PROMPTS[1] + PROMPTS[2]]
    for prompt in prompts:
        house.submit(prompt, greedy(50))
    house.finish()
    for handle in range(4):
        prompts.append([*prompts[handle], *house.logs[handle][:31], 5, 6, 7])
        house.submit(prompts[-1], greedy(20))
    house.finish()
    for prompt, log in zip(prompts, house.logs.values(), strict=True):
        assert log and log == reference.would_say(prompt, log)


@pytest.mark.row("F04.11")
@pytest.mark.parametrize(("num_pages", "host_pages"), [(30, 0), (40, 60)])
def test_what_was_dropped_is_found_or_computed_again(
    mistral: Windows, num_pages: int, host_pages: int
) -> None:
    """Few pages: sequences are preempted, their beginnings evicted, swapped, found, copied."""
    house = Windowed(mistral.loaded, num_pages=num_pages, host_pages=host_pages)
    two_turns(house, mistral)
    assert any(plan.drop_rows for plan in house.sent) and house.cached


@pytest.mark.row("F04.26")
@pytest.mark.parametrize(("num_pages", "host_pages"), [(36, 0), (44, 150)])
@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param("DeepseekV32ForCausalLM", marks=pytest.mark.row("L04")),
        pytest.param("GlmMoeDsaForCausalLM", marks=pytest.mark.row("L05")),
    ],
)
def test_chosen_keys_stay_the_same_when_sequences_come_and_go(
    tmp_path: Path, architecture: str, num_pages: int, host_pages: int
) -> None:
    """Preempted, evicted, swapped, found, copied, in pieces of any size: every log is that of
    transformers, whose index has seen the text as a whole."""
    model, limits = Windows(tmp_path, architecture), SchedulerOptions(max_num_batched_tokens=16)
    house = Windowed(model.loaded, limits, num_pages=num_pages, host_pages=host_pages)
    two_turns(house, model)
    assert house.cached and house.state.counters.preemptions > 0
    assert not host_pages or swapped_in(house) > 0


@pytest.fixture(scope="module", params=["MambaForCausalLM", "FalconMambaForCausalLM"])
def states(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    return Windows(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.row("S01", "F04.19", "F07.01", "F07.03", "F07.04")
@pytest.mark.parametrize(("num_pages", "host_pages"), [(30, 0), (10, 0), (10, 60)])
def test_states_alone_are_found_computed_again_and_swapped(
    states: Windows, num_pages: int, host_pages: int
) -> None:
    """Where no layer sees all tokens, a sequence holds the pages of its last few: it waits for
    these, and then it is never short of any."""
    limits = SchedulerOptions(max_num_batched_tokens=16)
    house = Windowed(states.loaded, limits, num_pages=num_pages, host_pages=host_pages)
    two_turns(house, states)
    assert any(plan.drop_rows for plan in house.sent) and house.cached
    assert house.most_held <= 4 and house.state.counters.preemptions == 0
    assert not host_pages or swapped_in(house) > 0


@pytest.mark.row("S01", "F04.19", "F07.01", "F07.03", "F07.04")
@pytest.mark.parametrize("known", [1, 15, 16, 29])
def test_states_are_those_of_prompt_and_log(states: Windows, known: int) -> None:
    """What was decoded token by token is computed again in chunks of a prompt."""
    house = Windowed(states.loaded)
    house.submit(PROMPTS[2], greedy(30))
    [log] = house.finish().values()
    again = Windowed(states.loaded)
    again.submit(PROMPTS[2], greedy(30), log=log[:known])
    assert list(again.finish().values()) == [log] and log == states.would_say(PROMPTS[2], log)


MIXED: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {},
    "Gemma3ForCausalLM": {},
    "GptOssForCausalLM": {},
    "Cohere2ForCausalLM": {},
    "Exaone4ForCausalLM": {},
    "Lfm2MoeForCausalLM": {},
    "MiniMaxForCausalLM": {},
    "BambaForCausalLM": {},
    "NemotronHForCausalLM": {},
    "JambaForCausalLM": {},
    "Qwen3NextForCausalLM": {},
    "KimiLinearForCausalLM": {},
}
"""Models that mix layers which see all with layers which see a window, and changes to them."""


def marked(architecture: str) -> Any:
    """With the rows of those whose state has to survive all this."""
    rows = {
        "Lfm2MoeForCausalLM": ("M16", "F04.21", "F07.12"),
        "MiniMaxForCausalLM": ("M15", "F04.17"),
        "BambaForCausalLM": ("S04", "F04.20", "F07.02", "F07.15"),
        "NemotronHForCausalLM": ("S08", "F04.20", "F07.02", "F07.15"),
        "JambaForCausalLM": ("S03", "F04.19", "F07.01"),
        "Qwen3NextForCausalLM": ("S11", "F04.18", "F07.13"),
        "KimiLinearForCausalLM": ("L09", "F04.17", "F07.13", "F23.06"),
    }
    marks = [pytest.mark.row(*rows[architecture])] if architecture in rows else []
    return pytest.param(architecture, marks=marks)


@pytest.fixture(scope="module", params=[marked(name) for name in MIXED])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    folder = tmp_path_factory.mktemp(request.param)
    return Windows(folder, request.param, **MIXED[request.param])


def kept(
    loaded: LoadedModel, groups: LayerGroups, limits: SchedulerOptions
) -> tuple[list[list[int]], int]:
    """The answers to `PROMPTS`, and the most bytes of pages that one of them held."""
    house = Windowed(loaded, limits, num_pages=400, groups=groups)
    for prompt in PROMPTS:
        house.submit(prompt, greedy(64))
    logs = list(house.finish().values())
    assert house.state.counters.preemptions == 0
    return logs, house.most_held * group_bytes(loaded.spec, groups, 4, torch.float32)


@pytest.fixture(scope="module")
def kept_by_all(mixed: Windows) -> tuple[list[list[int]], int]:
    """As `kept`, where every layer keeps every token."""
    limits = SchedulerOptions(max_steps_per_plan=1)
    return kept(mixed.loaded, one_group(mixed.loaded.spec, 4), limits)


@pytest.mark.row("F04.11", "F12.01")
@pytest.mark.parametrize("max_steps", [1, 8])
def test_windowed_groups_of_a_mixed_model_free_their_pages_and_the_text_is_that_of_a_dense_mask(
    mixed: Windows, kept_by_all: tuple[list[list[int]], int], max_steps: int
) -> None:
    spec, limits = mixed.loaded.spec, SchedulerOptions(max_steps_per_plan=max_steps)
    groups = page_groups(spec, 4, torch.float32)
    assert 0 in groups.windows and max(groups.windows) > 0
    logs, held = kept(mixed.loaded, groups, limits)
    for prompt, log in zip(PROMPTS, logs, strict=True):
        assert len(log) == 64 and log == mixed.would_say(prompt, log)
    plain, before = kept_by_all
    assert plain == logs
    # 105 tokens fill 27 pages of every layer; a window, and what is in flight, far fewer.
    size = group_bytes(spec, groups, 4, torch.float32)
    full = sum(window == 0 for window in groups.windows)
    seen = -(-(max(groups.windows) + 2 * max_steps) // 4) + 2
    assert held <= size * (27 * full + seen * (len(groups.windows) - full))
    assert held < 0.75 * before


@pytest.mark.row("F12.01")
@pytest.mark.parametrize(("blocks", "host_pages"), [(36, 0), (44, 150)])
def test_groups_short_of_pages_change_no_token(
    mixed: Windows, blocks: int, host_pages: int
) -> None:
    """Sequences are preempted, their beginnings evicted, swapped, found, copied, group by group."""
    groups = page_groups(mixed.loaded.spec, 4, torch.float32)
    full = sum(window == 0 for window in groups.windows)
    few = 10 if max(groups.windows) > 8 else 3
    num_pages = full * blocks + few * (len(groups.windows) - full)
    limits = SchedulerOptions(max_num_batched_tokens=16)
    house = Windowed(mixed.loaded, limits, num_pages=num_pages, host_pages=host_pages)
    two_turns(house, mixed)
    assert any(plan.drop_rows for plan in house.sent) and house.cached
    assert not host_pages or any(plan.copy_to for plan in house.sent)
    assert house.state.counters.preemptions > 0
    assert not host_pages or swapped_in(house) > 0


@pytest.mark.row("F12.03")
def test_choices_of_a_mixed_model_share_the_pages_of_every_group(mixed: Windows) -> None:
    house, prompt = Windowed(mixed.loaded), PROMPTS[2][:27]
    for _ in range(3):
        house.submit(prompt, greedy(30), "one")
    logs = list(house.finish().values())
    assert logs == [mixed.would_say(prompt, logs[0])] * 3
    assert house.cached == dict.fromkeys((1, 2), 26)
    groups = len(page_groups(mixed.loaded.spec, 4, torch.float32).windows)
    assert sum(len(plan.copy_to) // 4 for plan in house.sent) == 2 * groups
