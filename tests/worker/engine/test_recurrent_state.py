"""States of recurrent layers through the scheduler's plans: chunks, prefix hits, swaps, decode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.fakes.scheduler_planner import entries
from tests.oracles.checkpoints import MAKERS, Oracle, asked
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import DEVICE, House

PROMPT = [5 + 7 * token % 300 for token in range(23)]
PAGE = 4


def made(name: str, folder: Path) -> Oracle:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name in MAKERS:
            return MAKERS[name](folder)
        return asked(tiny_models.save_checkpoint(folder, name))


def surprisals(house: House) -> dict[int, float]:
    """By position, of all parts that the steps have returned; later ones replace earlier ones."""
    parts = [part for result in house.results for part in result.prompt_logprobs]
    return {
        part.start + row: -chosen for part in parts for row, chosen, _, _ in entries(part.columns)
    }


@pytest.mark.row("F07.16", "F07.17", "F22.04")
def test_states_are_those_of_one_pass(tmp_path: Path) -> None:
    for name in ("Zamba2ForCausalLM", "Plamo2ForCausalLM"):
        folder = tmp_path / name
        folder.mkdir()
        oracle = made(name, folder)
        loaded = load_model(folder, BuildContext(DEVICE, torch.float32))
        values = oracle(PROMPT).log_softmax(-1)
        expected = [-values[at - 1, PROMPT[at]].item() for at in range(1, len(PROMPT))]
        chunked = House(loaded, SchedulerOptions(max_num_batched_tokens=9), host_pages=32)
        for _ in range(2):  # The second time behind a hit of the prefix cache.
            handle = chunked.submit(PROMPT, Sampling(8, temperature=0.0, prompt_logprobs=0))
            chunked.finish()
            found = surprisals(chunked)
            assert sorted(found) == list(range(1, len(PROMPT)))
            assert [found[at] for at in sorted(found)] == pytest.approx(expected, abs=2e-3)
            log = chunked.logs[handle]
            after = oracle(PROMPT + log[:-1])[len(PROMPT) - 1 :]
            assert after.argmax(-1).tolist() == log
            chunked.submit(PROMPT, Sampling(1, temperature=0.0))
            chunked.finish()
        assert max(chunked.cached.values()) >= PAGE

        # No token yet, none on the page that begins, one alone: each state is empty or whole.
        for length in (1, PAGE, PAGE + 1, 2 * PAGE):
            alone = House(loaded)
            alone.submit(PROMPT[:length], Sampling(PAGE + 1, temperature=0.0))
            doomed = alone.submit(PROMPT[:length], Sampling(9, temperature=0.0))
            alone.abort(doomed)
            [log, _] = alone.finish().values()
            after = oracle(PROMPT[:length] + log[:-1])[length - 1 :]
            assert after.argmax(-1).tolist() == log

        # Too few pages for both: one leaves its states to the host, or computes them again.
        for host_pages in (0, 64):
            tight = House(loaded, num_pages=40, host_pages=host_pages)
            handles = [tight.submit(PROMPT[n:], Sampling(30, temperature=0.0)) for n in range(4)]
            tight.finish()
            for number, handle in enumerate(handles):
                log = tight.logs[handle]
                after = oracle(PROMPT[number:] + log[:-1])[len(PROMPT) - number - 1 :]
                assert after.argmax(-1).tolist() == log
