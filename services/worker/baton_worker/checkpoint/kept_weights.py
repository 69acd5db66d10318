"""Weights in memory of a GPU that outlives its workers (`device_keeper`).

A model's parameters get their places in the order in which its layers are built. The first worker
has them filled from the checkpoint and seals them; the next one builds the same layers over the
same memory and reads no checkpoint but its config. The sum of all bytes is compared first: a worker
that died of a wild write may have changed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from baton import __version__
from baton.logs import logger
from baton.process.segments import digest
from baton_worker.config import Config
from baton_worker.device_keeper.bump_allocator import BumpAllocator
from baton_worker.device_keeper.kept_memory import KeeperClient, KeptMemory
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer

OF_ONE = frozenset({"name", "role", "fleet_address", "bind_kv", "advertise_kv"})
"""Settings in which workers that share a standby may differ."""
_SHARES = frozenset(
    {"threads", "gpu", "gpu_memory_utilization", "num_gpu_blocks_override", "max_kv_bytes"}
)
"""What a worker takes of its machine: weights do not depend on it."""

log = logger(__name__)


class HasLayers(Protocol):
    """A model."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights."""
        ...


M = TypeVar("M", bound=HasLayers)


@dataclass(frozen=True, slots=True)
class WeightKeeper:
    """What lends memory for one set of weights."""

    client: KeeperClient
    key: bytes
    """Digest of all that they depend on."""

    @property
    def name(self) -> str:
        """That of the memory."""
        return f"weights {self.key.hex()}"

    @property
    def has_them(self) -> bool:
        """Whether a worker has loaded them."""
        return self.client.find(self.name).sealed

    def drop(self) -> None:
        """They are not asked for again."""
        self.client.drop(self.name)

    def lease(self, size: int) -> KeptMemory | None:
        """Memory for them; None where there is none."""
        return self.client.lease(self.name, self.key, size)


def key_of(config: Config, path: Path, patches: Sequence[Path]) -> bytes:
    """Digest of all that the bytes of the weights depend on: files, settings and programs."""
    files = [path, *(sorted(path.iterdir()) if path.is_dir() else ()), *patches]
    stats = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    known = set(Config.model_fields) - OF_ONE - _SHARES
    settings = config.model_dump(mode="json", include=known)
    of = (stats, settings, __version__, torch.__version__)
    return digest(memoryview(repr(of).encode()))


def build_kept(
    build: Callable[[BuildContext], M], site: BuildContext, keeper: WeightKeeper
) -> tuple[M, KeptMemory | None]:
    """A model over memory that outlives this worker, and that memory; over memory of its own, and
    None, where it cannot be kept. `build` makes the layers for a context."""
    if reason := _unkept(site):
        log.info("weights of this worker do not outlive it: %s", reason)
        return build(site), None
    counted = BumpAllocator()
    trial = build(replace(site, device=torch.device("meta"), allocator=counted))
    if any(layer.rewrites_weights for layer in trial.layers()):
        log.info("weights of this worker do not outlive it: a layer changes them in place")
        return build(site), None
    if (kept := keeper.lease(counted.size)) is None:
        return build(site), None
    model = build(replace(site, allocator=BumpAllocator(kept.memory)))
    if _lies_in(model, kept.memory):
        return model, kept
    log.warning("weights of this worker do not outlive it: a layer allocates some by itself")
    kept.drop()
    return build(site), None


def _lies_in(model: HasLayers, memory: Tensor) -> bool:
    """Whether all that a checkpoint fills is in this memory."""
    first, size = memory.data_ptr(), len(memory)
    targets = (target for layer in model.layers() for _, target in layer.weight_targets())
    return all(0 <= target.data_ptr() - first < size for target in targets if target.numel())


def _unkept(site: BuildContext) -> str:
    """Why weights of this context are not kept, as half a sentence; empty if they are."""
    if site.quantization != "none" or site.staging is not None:
        return "they are packed while they are loaded"
    return ""


def attach(model: HasLayers) -> None:
    """Have every layer use the weights that are there."""
    for layer in model.layers():
        layer.process_weights_after_loading()
    log.info("weights are those that the keeper of this GPU holds: the checkpoint is not read")
