"""The state space of PLaMo 2: bits do not depend on chunks; parity is tested with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ssm.selective_state_space import SelectiveStateSpace
from tests.oracles.checkpoints import MAKERS


def test_chunks_neighbours_and_decode_steps_change_no_bit(tmp_path: Path, driver: Any) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MAKERS["Plamo2ForCausalLM"](tmp_path)
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    assert any(isinstance(module, SelectiveStateSpace) for module in loaded.model.modules())
    tokens = torch.randint(2, 320, (37,)).tolist()
    whole = driver(loaded, 1).step({0: tokens})[0]
    for sizes in ((8, 8, 21), (1,) * 37, (3, 30, 4)):
        run, at, parts = driver(loaded, 2), 0, list[torch.Tensor]()
        for size in sizes:
            parts.append(run.step({0: tokens[at : at + size], 1: tokens[:2]})[0])
            at += size
        assert torch.equal(torch.cat(parts), whole)
