"""Steps that are launched ahead: the same tokens, and a host that waits for nothing but tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.kernels import triton
from baton_worker.layers.build_context import BuildContext
from tests.fakes.device_double import DOUBLE, device_double
from tests.fakes.host_link import HostLink
from tests.fakes.replayed_steps import Counting
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import DEVICE, STORY, House


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    """The sampler of a GPU, with as many rows in a program as make the interpreter fast."""
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has the device itself")
    with interpreter(), pytest.MonkeyPatch.context() as patch:
        from baton_worker.kernels.triton import sampling

        patch.setattr(sampling, "sample", partial(sampling.sample, rows=8))
        yield


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


PLAIN = [
    Sampling(20, temperature=0.0),
    Sampling(7, seed=2, temperature=0.7),
    Sampling(20, temperature=0.0, stop_ids=(261,)),
    Sampling(3, seed=4, top_k=20),
]


def run(house: House, samplings: list[Sampling]) -> list[list[int]]:
    """Arrivals while others decode, and one that is aborted."""
    first = [house.submit(STORY[: 3 + i], s) for i, s in enumerate(samplings)]
    doomed = house.submit(STORY, Sampling(99, temperature=0.0))
    while len(house.logs[first[0]]) < 5:
        house.turn()
    late = [house.submit(STORY[i:] * 3, s) for i, s in enumerate(samplings)]
    while len(house.logs[doomed]) < 12:
        house.turn()
    house.abort(doomed)
    house.finish()
    return [house.logs[handle] for handle in (*first, *late)]


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[list[int]]:
    return run(House(loaded, SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)), PLAIN)


@pytest.mark.row("F13.08")
def test_launching_ahead_changes_no_token(loaded: LoadedModel, expected: list[list[int]]) -> None:
    assert any(log[-1] == 261 and len(log) < 20 for log in expected), "some log must stop early"
    for depth, max_steps in ((2, 1), (4, 8)):
        house = House(
            loaded,
            SchedulerOptions(
                plans_in_flight=depth, max_steps_per_plan=max_steps, max_num_batched_tokens=24
            ),
            link=HostLink(),
        )
        assert run(house, PLAIN) == expected
        assert house.pipeline is not None
        assert house.pipeline.waits.total() < len(house.results) / 4, house.pipeline.waits


@pytest.mark.row("F13.08")
def test_rows_that_need_the_host_make_their_steps_wait_and_change_no_token(
    loaded: LoadedModel,
) -> None:
    reasons = {
        "its penalties count tokens": Sampling(9, seed=5, repetition_penalty=1.3),
        "its log-probabilities are read": Sampling(9, temperature=0.0, logprobs=2),
        "its logits are adjusted": Sampling(9, temperature=0.0, logit_bias={261: 3.0}),
        "its typical_p has no kernel": Sampling(9, seed=8, typical_p=0.7),
        "its prompt log-probabilities are read": Sampling(12, temperature=0.0, prompt_logprobs=1),
        "min_tokens forbids its stop tokens": Sampling(
            12, temperature=0.0, min_tokens=4, stop_ids=(261, 432)
        ),
    }
    options = SchedulerOptions(max_steps_per_plan=1)
    for reason, sampling in reasons.items():
        logs = []
        for link in (None, HostLink()):
            house = House(loaded, options, link=link)
            for asked in (Sampling(14, temperature=0.0), sampling):
                house.submit(STORY, asked)
            logs.append(house.finish())
        assert logs[0] == logs[1]
        assert house.pipeline is not None and house.pipeline.waits[reason] > 0
        assert house.pipeline.waits.total() < len(house.results), "later steps are launched ahead"


class _Broken:
    """A model whose logits of one row of its tenth decode step are NaN."""

    def __init__(self, loaded: LoadedModel, step: int) -> None:
        self._model, self._step, self._calls = loaded.model, step, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._model.logits(hidden)
        self._calls += 1
        if self._calls == self._step:
            logits[1, 7] = torch.nan
        return logits


@pytest.mark.row("F13.08")
def test_a_row_that_breaks_costs_no_other_row_though_the_next_step_has_it_too(
    loaded: LoadedModel,
) -> None:
    house, alone = House(loaded, link=HostLink()), House(loaded)
    house.runner.forward.model = _Broken(loaded, 5)  # type: ignore[attr-defined]
    handles = [house.submit(STORY[: 4 + i], Sampling(12, temperature=0.0)) for i in range(3)]
    house.finish()
    for i in (0, 1, 2):
        alone.submit(STORY[: 4 + i], Sampling(12, temperature=0.0))
    logs = alone.finish()
    assert [house.logs[h] for h in (handles[0], handles[2])] == [logs[0], logs[2]]
    assert house.logs[handles[1]] == logs[1][:4]
    assert [*house.failures] == [handles[1]] and "not finite" in house.failures[handles[1]]
    # A row that breaks behind the end of its sequence fails nobody; its pages are suspect.
    (stop, before), house = (logs[1][3], logs[1][:3]), House(loaded, link=HostLink())
    assert stop not in before
    house.runner.forward.model = _Broken(loaded, 5)  # type: ignore[attr-defined]
    ends = [(), (stop,), ()]
    for i, ids in enumerate(ends):
        house.submit(STORY[: 4 + i], Sampling(12, temperature=0.0, stop_ids=ids))
    assert list(house.finish().values()) == [logs[0], [*before, stop], logs[2]]
    assert not house.failures and house.runner._quarantine._suspect


def test_the_double_notices_what_makes_a_host_wait() -> None:
    with torch.inference_mode(), device_double() as double:
        there = torch.zeros(4, device=DOUBLE)
        assert not double.blocking and (there + 1).device == DOUBLE
        waits: dict[str, Callable[[], object]] = {
            "aten::item": lambda: there.sum().item(),
            "aten::to": lambda: there.cpu(),
            "aten::copy_": lambda: there.copy_(torch.ones(4)),
            "aten::nonzero": lambda: there.nonzero(),
            "aten::index (mask)": lambda: there[there > 0],
        }
        for name, wait in waits.items():
            double.clear()
            wait()
            assert double.blocking == {name: 1}
        double.clear()
        pinned, target = double.pinned(4), torch.zeros(4, dtype=torch.uint8, device=DOUBLE)
        double.upload(pinned, target)
        first = double.download(target + 1)
        double.download(target)
        assert first.wait().tolist() == [1] * 4 and double.lateness == [1]
        double.upload(pinned, target)
        pinned.fill_(7)
        with pytest.raises(AssertionError, match="written while it was copied"):
            double.download(target).wait()
        assert not double.blocking


@pytest.mark.row("F13.08", "F13.06")
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        pytest.param("LlamaForCausalLM", {"num_hidden_layers": 1}, id="attention"),
        pytest.param("MambaForCausalLM", {"num_hidden_layers": 1}, id="a scan"),
        pytest.param("FalconH1ForCausalLM", {"num_hidden_layers": 1}, id="attention and states"),
        pytest.param(
            "Qwen3NextForCausalLM",
            {"layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": [0, 1]}
            | {"num_hidden_layers": 2},
            id="attention and a delta net",
        ),
        pytest.param(
            "Lfm2ForCausalLM",
            {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
            id="attention and a convolution",
        ),
    ],
)
def test_a_decode_step_is_one_copy_each_way_and_waits_for_nothing_that_was_just_launched(
    tmp_path: Path, architecture: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted on a device double, kernel by kernel and replayed; pages begin within the steps."""
    tiny_models.save_checkpoint(tmp_path, architecture, vocab_size=64, **changes)
    plain = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    samplings = [Sampling(5, temperature=0.0), Sampling(4, seed=5), Sampling(6, temperature=0.0)]
    sync, prompt = House(plain), [3, 7, 9, 11, 2]
    for sampling in samplings:
        sync.submit(prompt, sampling)
    expected = sync.finish()
    monkeypatch.setattr(triton, "runs", lambda device: device == DOUBLE)
    # Inference tensors throughout: views of a wrapper have no version.
    with torch.inference_mode(), device_double() as double:
        attention = AttentionSelector("triton")
        loaded = load_model(tmp_path, BuildContext(DOUBLE, torch.float32, attention=attention))
        for replayed in (False, True):
            house = House(
                loaded, SchedulerOptions(max_steps_per_plan=1), link=double, device=DOUBLE
            )
            forward, replays = house.runner.forward, Counting()
            if replayed:
                forward.model = graphed = GraphedModel(  # type: ignore[attr-defined]
                    loaded.model,
                    forward._cache,
                    Sizes((1, 2, 4), 64, mixed=(8, 16)),
                    replays,
                    DOUBLE,  # type: ignore[attr-defined]
                )
                graphed.capture()
            for sampling in samplings:
                house.submit(prompt, sampling)
            for _ in range(3):
                house.turn()
            while not house.state.idle:
                double.clear()
                launched = house.pipeline.in_flight if house.pipeline else False
                house.turn()
                assert not double.blocking, double.blocking
                assert double.counts["upload"] <= 1 and double.counts["download"] <= 1
                assert double.counts["wait"] <= 1
                assert launched and double.lateness in ([1], [0])
                # Only the last one has nothing launched behind it.
                assert double.lateness == [1] or not double.counts["upload"]
            assert house.logs == expected
            steps = sum(len(result.rows) > 0 for result in house.results)
            assert replays.replays == (steps if replayed else 0), "prompts are replayed too"
