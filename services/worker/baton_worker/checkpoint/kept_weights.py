"""Weights in memory of a GPU that outlives its workers (`device_keeper`).

    block 0         parameters, in the order in which layers are built
    blocks 1 ...    what loading makes: weights that stay packed, and their layouts
    table           the sizes of the blocks, and of layers what lies where (`kept_layers`)

The first worker has them filled from the checkpoint and seals them; the next one builds the same
layers over the same memory and reads no checkpoint but its config. The sum of all bytes is compared
first: a worker that a wild write crashed may have changed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from baton import __version__
from baton.logs import logger
from baton.process.segments import digest
from baton_worker.checkpoint.kept_layers import KeptBlocks, NotKept, describe, read
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
"""Settings of resources of the machine: weights do not depend on them."""
_LENGTH = 8
"""Bytes of a table's length, in front of it."""

log = logger(__name__)


class HasLayers(Protocol):
    """A model."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights."""
        ...


M = TypeVar("M", bound=HasLayers)


class _Table(msgspec.Struct):
    """The table that the next worker reads."""

    blocks: list[int]
    """Bytes of each block."""
    layers: dict[int, bytes]
    """By number among the model's layers, see `kept_layers.describe`."""


@dataclass(frozen=True, slots=True)
class WeightKeeper:
    """Leases memory for one set of weights."""

    client: KeeperClient
    key: bytes
    """Digest of all that they depend on."""

    @property
    def name(self) -> str:
        """Key of the first block."""
        return f"weights {self.key.hex()}"

    @property
    def has_them(self) -> bool:
        """Whether a worker has loaded them."""
        return self.client.find(self._table).sealed

    def drop(self) -> None:
        """Drop the weights; no later worker requests them."""
        self.client.drop(self._table)
        number = 0
        while self.client.find(self._block(number)).generation:
            self.client.drop(self._block(number))
            number += 1

    def lease(self, number: int, size: int) -> KeptMemory | None:
        """Memory for a block; None where there is none."""
        return self.client.lease(self._block(number), self.key, size)

    def read_table(self) -> _Table | None:
        """The table of the worker that loaded them; None if it is missing or incomplete."""
        entry = self.client.find(self._table)
        if not entry.sealed:
            return None
        leased = self.client.lease(self._table, self.key, entry.size)
        if leased is None or not leased.whole:
            return None
        data = leased.memory.cpu().numpy().tobytes()
        length = int.from_bytes(data[:_LENGTH], "little")
        return msgspec.msgpack.decode(data[_LENGTH : _LENGTH + length], type=_Table)

    def write_table(self, table: _Table) -> bool:
        """The blocks are whole. False where there is no memory to say so."""
        data = msgspec.msgpack.encode(table)
        data = len(data).to_bytes(_LENGTH, "little") + data
        data += bytes(-len(data) % _LENGTH)
        leased = self.client.lease(self._table, self.key, len(data))
        if leased is None:
            return False
        leased.memory.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        leased.seal()
        return True

    def _block(self, number: int) -> str:
        return f"{self.name} {number}" if number else self.name

    @property
    def _table(self) -> str:
        return f"{self.name} table"


class KeptWeights:
    """The weights of this worker in memory that outlives it.

    Life cycle: `attach`; if it has not, `keep` every layer as it is processed, then `seal`.
    """

    def __init__(self, keeper: WeightKeeper, first: KeptMemory, layers: Sequence[Layer]) -> None:
        """`first`: memory of the parameters of the `layers`."""
        self._keeper, self._layers = keeper, list(layers)
        self._numbers = {layer: number for number, layer in enumerate(self._layers)}
        self.blocks = KeptBlocks(first, keeper.lease)
        self._kept = dict[int, bytes]()
        self._failed = False

    @property
    def as_left(self) -> bool:
        """Whether a worker before has had this memory."""
        return self.blocks.memories[0].as_left

    def attach(self) -> bool:
        """Let every layer use the retained weights; false if they are missing or have changed."""
        table = self._keeper.read_table()
        if table is None or not self.blocks.open(table.blocks):
            return False
        try:
            attributes = {
                number: read(self._layers[number], data, self.blocks)
                for number, data in table.layers.items()
            }
        except NotKept as error:
            log.warning("the weights that the keeper holds are not used: %s", error)
            return False
        for number, layer in enumerate(self._layers):
            if number in attributes:
                layer.restore(attributes[number])
            else:
                layer.process_weights_after_loading()
        log.info("weights are those that the keeper of this GPU holds: the checkpoint is not read")
        return True

    def keep(self, layer: Layer) -> None:
        """Move the processed weights of a layer into this memory."""
        if self._failed or not layer.single_use:
            return
        try:
            data = describe(layer, self.blocks)
            attributes = read(layer, data, self.blocks)
        except NotKept as error:
            log.info("weights of this worker do not outlive it: %s", error)
            self._failed = True
        else:
            layer.restore(attributes)
            self._kept[self._numbers[layer]] = data

    def seal(self) -> bool:
        """All layers are loaded. Returns whether the next worker finds them."""
        if not self._failed:
            self.blocks.seal()
            table = _Table([len(block.memory) for block in self.blocks.memories], self._kept)
            self._failed = not self._keeper.write_table(table)
        if self._failed:
            self.drop()
        return not self._failed

    def there(self) -> bool:
        """Whether the keeper still holds this memory for the next worker."""
        return all(block.there() for block in self.blocks.memories)

    def drop(self) -> None:
        """Have it freed once no process has it open."""
        self._keeper.drop()


def file_stats(path: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of change of a checkpoint and of each file in it. They differ where a
    checkpoint has been replaced by another one of its name."""
    files = [path, *(sorted(path.iterdir()) if path.is_dir() else ())]
    return [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]


def key_of(config: Config, path: Path, patches: Sequence[Path], rank: int = 0) -> bytes:
    """Digest of all that the bytes of a rank's weights depend on: files, settings, programs."""
    stats = [stat for place in (path, *patches) for stat in file_stats(place)]
    counted = set(Config.model_fields) - OF_ONE - _SHARES
    settings = config.model_dump(mode="json", include=counted)
    of = (stats, settings, rank, __version__, torch.__version__)
    return digest(memoryview(repr(of).encode()))


def build_kept(
    build: Callable[[BuildContext], M], context: BuildContext, keeper: WeightKeeper
) -> tuple[M, KeptWeights | None]:
    """A model over memory that outlives this worker, and that memory; over memory of its own, and
    None, where it cannot be kept. `build` makes the layers for a context."""
    counted, meta = BumpAllocator(), torch.device("meta")
    build(replace(context, device=meta, staging=context.staging and meta, allocator=counted))
    if (kept := keeper.lease(0, counted.size)) is None:
        return build(context), None
    model = build(replace(context, allocator=BumpAllocator(kept.memory)))
    if context.staging is not None or _lies_in(model, kept.memory):
        return model, KeptWeights(keeper, kept, model.layers())
    log.warning("weights of this worker do not outlive it: a layer allocates some by itself")
    kept.drop()
    return build(context), None


def _lies_in(model: HasLayers, memory: Tensor) -> bool:
    """Whether all that a checkpoint fills is in this memory."""
    first, size = memory.data_ptr(), len(memory)
    targets = (target for layer in model.layers() for _, target in layer.weight_targets())
    return all(0 <= target.data_ptr() - first < size for target in targets if target.numel())
