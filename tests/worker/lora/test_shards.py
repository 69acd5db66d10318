"""Adapters on two ranks answer as on one; the parts of A and B are those of the base's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.fakes.two_ranks import TwoRanks
from tests.support import tiny_models
from tests.support.worker.lora_folders import write_adapter

CPU = torch.device("cpu")
TOKENS = [7 + (31 * i) % 300 for i in range(24)]


@pytest.mark.row("F11.03", "F14.03")
def test_two_ranks_answer_as_one(tmp_path: Path, driver: Any, two_ranks: TwoRanks) -> None:
    """Attention, feed-forward and head, decomposed (DoRA); experts; latent attention."""
    for name in ("LlamaForCausalLM", "Qwen2MoeForCausalLM", "DeepseekV2ForCausalLM"):
        base, column = tmp_path / name, TokenAdapters(2, 2048, CPU)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            tiny_models.save_checkpoint(base, name)
        alone = load_model(base, BuildContext(CPU, torch.float32, adapters=column))
        assert isinstance(alone.model, Model)
        one = LoraTargets(alone.model, alone.spec)
        folder = write_adapter(
            tmp_path / f"{name}-adapter",
            one.shapes,
            scale=0.03,
            magnitude=0.3 if name == "LlamaForCausalLM" else None,
        )
        adapter = read_adapter(folder, one, 64)
        one.put(1, adapter.pairs)
        slots = np.repeat([1, -1], len(TOKENS))
        column.write(slots)
        run = driver(alone, 2)
        wanted = run.step({0: TOKENS, 1: TOKENS})
        with two_ranks.serving(base, num_pages=run.cache.num_pages, adapters=2) as led:
            model: Any = led.loaded.model
            shard = model._model
            both = LoraTargets(shard, led.loaded.spec, led.loaded.parts, two_ranks.put_adapter)
            assert both.shapes == one.shapes
            again = read_adapter(folder, both, 64)
            assert again.digest == adapter.digest
            both.put(1, again.pairs)
            shard.adapters.write(slots)
            run = driver(alone, 2)
            run.loaded, run.cache = led.loaded, led.cache
            ours = run.step({0: TOKENS, 1: TOKENS})
            whole = {"lm_head": (320, 48)}
            with pytest.raises(ModelError, match="workers of one process"):
                read_adapter(replaced(tmp_path / f"{name}-whole", whole), both, 64)
        for row in (0, 1):
            torch.testing.assert_close(ours[row], wanted[row], rtol=1e-3, atol=1e-3)
        assert (wanted[0] - wanted[1]).abs().max() > 0.3


def replaced(folder: Path, shapes: dict[str, tuple[int, int]]) -> Path:
    """An adapter with weights of its own."""
    from safetensors.torch import save_file

    write_adapter(folder, {})
    stored = {
        f"base_model.model.{name}.weight": torch.ones(shape) for name, shape in shapes.items()
    }
    save_file(stored, folder / "adapter_model.safetensors")
    return folder
