"""A tiny model that takes adapters, and two adapters of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.modules import LoraModule
from baton_worker.lora.store import AdapterStore
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.support import tiny_models
from tests.support.worker.lora_folders import write_adapter

CPU = torch.device("cpu")
NAMES = ("one", "two", "three")


class Adapted(NamedTuple):
    """A model with its adapters in memory."""

    base: Path
    folders: dict[str, Path]
    loaded: LoadedModel
    column: TokenAdapters
    store: AdapterStore

    def digest(self, name: str) -> bytes:
        return next((i.digest for i in self.store.infos if i.name == name), b"")


def adapted_model(root: Path) -> Adapted:
    """Write and load all of it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny_models.save_checkpoint(root / "base", "LlamaForCausalLM")
    column = TokenAdapters(2, 2048, CPU)
    loaded = load_model(root / "base", BuildContext(CPU, torch.float32, adapters=column))
    assert isinstance(loaded.model, Model)
    targets = LoraTargets(loaded.model, loaded.spec)
    store, folders = AdapterStore(targets, max_rank=16, capacity=8), {}
    for seed, name in enumerate(NAMES):
        folders[name] = write_adapter(root / name, targets.shapes, seed=seed, scale=0.1)
        module = LoraModule(name, str(folders[name]))
        store.add(module, store.read(module.path))
    return Adapted(root / "base", folders, loaded, column, store)
