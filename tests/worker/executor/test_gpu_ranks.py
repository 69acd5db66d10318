"""Steps of several ranks on GPUs: replayed on every rank and launched ahead, with no host waiting
for another one's device. Two gloo ranks, each on a device double."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, cast

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.distributed.host_ranks import HostRanks
from baton_worker.executor.commands import Capture, End, Pipe
from baton_worker.executor.leader import LedModel
from baton_worker.graphs.startup import why_uncaptured
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.fakes.device_double import DOUBLE, Double, device_double
from tests.fakes.double_ranks import DoubleRanks, load, mixed_replays, replayed
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import House

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
ONE_STEP = SchedulerOptions(max_steps_per_plan=1)
PLAIN = [Sampling(6, temperature=0.0), Sampling(3, seed=5), Sampling(5, temperature=0.0)]
PROMPT = [3, 7, 9, 11, 2]


def run(house: House, double: Double | None = None) -> dict[int, list[int]]:
    """Three sequences, and one whose penalties need the host; looks at what each turn did."""
    for sampling in PLAIN:
        house.submit(PROMPT, sampling)
    for _ in range(3):
        house.turn()
    while not house.state.idle:
        if double is not None:
            double.clear()
        house.turn()
        if double is not None:
            assert not double.blocking, double.blocking
            assert double.counts["upload"] <= 1 and double.counts["download"] <= 1
            assert double.lateness == [1] or not double.counts["upload"]
    house.submit(PROMPT, Sampling(3, temperature=0.0, repetition_penalty=1.5))
    return house.finish()


@pytest.mark.row("F13.08", "F13.06")
def test_ranks_replay_and_launch_ahead_with_the_tokens_of_one(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has the device itself")
    model, meeting, report = (tmp_path / name for name in ("model", "meeting", "report"))
    changes = {"num_hidden_layers": 1, "vocab_size": 64}
    tiny_models.save_checkpoint(model, "LlamaForCausalLM", **changes)
    expected = run(House(load_model(model, BuildContext(CPU, torch.float32))))
    command = [sys.executable, "-m", "tests.fakes.double_ranks", meeting, model, report]
    follower = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, cwd=ROOT)
    try:
        commands = Pipe([cast(BinaryIO, follower.stdin)])
        with (
            interpreter(),
            torch.inference_mode(),
            device_double() as double,
            mixed_replays() as mixed,
        ):
            ranks = DoubleRanks(HostRanks(meeting, 0, 2), double)
            loaded = load(model, ranks)
            assert isinstance(loaded.model, Model)
            for captured in (False, True):
                house = House(loaded, ONE_STEP, link=double, device=DOUBLE)
                forward = house.runner.forward
                graphed = replayed(loaded, forward._cache, ranks)  # type: ignore[attr-defined]
                forward.model = led = LedModel(graphed, commands, ranks)  # type: ignore[attr-defined]
                led.watch(forward.buffers, 1)  # type: ignore[attr-defined]
                if captured:
                    commands.send(Capture())
                    assert why_uncaptured(graphed) is None
                mixed.clear()
                assert run(house, double) == expected
        commands.send(End())
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.communicate()
    told = json.loads(report.read_text())
    names = [name for name, *_ in told]
    before, after = (told[part] for part in split(names.index("Capture")))
    for done in (before, after):
        steps = [counts for name, *counts, _ in done if name == "Step"]
        assert len(steps) > 6
        # One copy to the device, none from it, and nothing that waits for it.
        assert all(counts == [1, 0, 0] for counts in steps), steps
        assert all(not any(counts) for name, *counts in done if name == "Logits")
    # Steps with prompts are replayed too, by both.
    assert not any(replays for *_, replays in before)
    assert sum(replays for *_, replays in after) == len(mixed) > 0
    assert [name for name, *_ in before].count("Logits") > 6
    # Replays have made the logits of decode steps: only prompts, and the host's rows, ask for more.
    assert [name for name, *_ in after].count("Logits") < 5
    assert "Forward" not in names


def split(at: int) -> tuple[slice, slice]:
    return slice(0, at), slice(at + 1, None)
