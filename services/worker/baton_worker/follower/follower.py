"""A follower rank: executes the leader's commands until the leader exits."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from baton.errors import BatonError
from baton.logs import logger, setup
from baton.process.lifecycle import (
    EXIT_FAULT,
    EXIT_GROUP,
    EXIT_MODEL,
    EXIT_SETTINGS,
    default_name,
)
from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.attention.staged_buffers import StagedBuffers
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.startup import load, load_weights, page_settings, prepare
from baton_worker.engine.weight_switch import trial_config
from baton_worker.executor.commands import (
    Begin,
    BeginTrial,
    Capture,
    Clear,
    Command,
    Copy,
    DropShard,
    End,
    EndTrial,
    Forget,
    Forward,
    Load,
    LoadShard,
    Logits,
    PutAdapter,
    Reader,
    Step,
    Store,
    SwitchShard,
    Take,
    Zero,
)
from baton_worker.executor.join_stages import join_stages
from baton_worker.executor.kv_transfer import FollowerKVTransfer, of_rank
from baton_worker.follower.parent_death import die_with_parent
from baton_worker.follower.shard_update import Shard, ShardUpdate
from baton_worker.graphs import GraphedModel
from baton_worker.graphs.startup import graphed_model, why_uncaptured
from baton_worker.kernels.lora import LoraPair
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from baton_worker.platform.device_link import CudaLink
from baton_worker.platform.malloc import release_freed_memory

log = logger(__name__)
_LEADER_SECONDS = 60.0
"""Within these a leader ends that has lost a rank."""


class Follower:
    """One rank's shard of a model and its pages. Holds no requests."""

    def __init__(
        self,
        shard: Shard,
        host: HostPages | None,
        ranks: Communicator,
        *,
        kv_transfer: FollowerKVTransfer | None = None,
        update: ShardUpdate | None = None,
        buffers: Buffers | None = None,
        graphs: Callable[[Shard], GraphedModel] | None = None,
        everyone: Communicator | None = None,
    ) -> None:
        """`update` loads other weights, where these can change. `buffers` take the indices of a
        step to the device; None: one copy for each of them. `graphs` makes what captures and
        replays steps of a shard, if the leader does. `ranks` have parts of these layers, and
        `everyone` of all stages; None: there are no others."""
        self._everyone = ranks if everyone is None else everyone
        self._used = self._shard = shard
        self._host, self._ranks = host, ranks
        self._kv_transfer, self._update, self._graphs = kv_transfer, update, graphs
        self._device = shard.cache.layers[0].device
        self._buffers = Buffers(self._device) if buffers is None else buffers
        self._graphed: GraphedModel | None = None
        """Replays steps of the shard in use."""

    @property
    def progress(self) -> int:
        """Layers that were run with the weights in use. Any thread may ask."""
        return self._shard.model.progress

    def run(self, commands: Reader) -> None:
        """Execute commands until `End`, or until the leader exits."""
        while not isinstance(command := commands.next(), End):
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case Forward():
                self._forward(command)
            case Step():
                self._step(command)
            case Capture():
                self._capture()
            case Logits(shape, adapters):
                self._logits(shape, adapters)
            case PutAdapter(slot, pairs):
                self._put_adapter(slot, pairs)
            case Copy(sources, targets):
                self._shard.cache.copy(sources, targets)
            case Clear(page, first, group):
                self._shard.cache.clear(page, first, group)
            case Zero():
                self._shard.cache.zero()
            case Store(pages, host):
                self._host_pages.store(pages, host)
            case Load(host, pages):
                self._host_pages.load(host, pages)
            case Take(message):
                self._own_kv_transfer.take(message)
            case Forget():
                self._own_kv_transfer.reset()
            case LoadShard(path, patches):
                self._own_update.begin(Path(path), tuple(map(Path, patches)))
            case BeginTrial():
                self._begin_trial()
            case EndTrial():
                self._shard = self._used
            case SwitchShard():
                self._switch()
            case DropShard():
                self._own_update.drop()
            case _:
                raise AssertionError(
                    f"{type(command).__name__} is no command for a running follower"
                )

    def _forward(self, command: Forward) -> None:
        device = command.tokens.device
        self._note(command.adapters)
        texts = by_length(command.batch.query_lens, device) if command.whole else ()
        cache = self._shard.cache
        self._runs.forward(
            command.tokens, command.positions, command.batch, cache, texts, command.media
        )

    @property
    def _runs(self) -> Model | GraphedModel:
        if self._graphed is not None and self._shard is self._used:
            return self._graphed
        return self._shard.model

    def _step(self, command: Step) -> None:
        """Launch a step; the host waits for nothing. One half of the buffers is free again: the
        leader has read the step before the last one, whose communication came behind its copy."""
        buffers, adapters = self._buffers, self._shard.model.adapters
        for name, values in command.arrays.items():
            buffers.array(name, values.shape, values.dtype)[...] = values
        rows = (command.query_lens, command.num_computed, command.page_size, command.groups)
        positions, batch = buffers.tensor("positions"), AttentionBatch.of_buffers(buffers, *rows)
        buffers.flush()
        tokens = torch.empty(sum(command.query_lens), dtype=torch.int64, device=self._device)
        self._ranks.broadcast(tokens, 0)
        if command.adapters is not None and adapters is not None:
            adapters.write(command.adapters)
        self._runs.forward(tokens, positions, batch, self._shard.cache)

    def _capture(self) -> None:
        assert self._graphs is not None, "the leader captures steps and this follower does not"
        graphed = self._graphs(self._used)
        self._graphed = None if why_uncaptured(graphed) else graphed

    def _begin_trial(self) -> None:
        beside = self._own_update.loaded()
        able = numbers(self._everyone, int(beside is not None), self._device)
        if all(able) and beside is not None:
            self._shard = beside

    def _switch(self) -> None:
        """Pages stay where they are: the leader reads none that was written with other weights."""
        beside = self._own_update.loaded()
        assert beside is not None, "the leader switches after a trial on all ranks"
        self._own_update.drop()
        if self._used.kept is not None:
            self._used.kept.drop()
        self._used = self._shard = replace(beside, cache=self._used.cache)
        self._graphed = None
        gc.collect()
        release_freed_memory()

    def _note(self, adapters: Tensor | None) -> None:
        """Each row has this adapter."""
        if adapters is not None and self._shard.model.adapters is not None:
            self._shard.model.adapters.write(adapters.cpu().numpy())

    def _put_adapter(
        self, slot: int, pairs: list[tuple[str, Tensor, Tensor, float, Tensor | None]]
    ) -> None:
        targets = self._shard.targets
        assert targets is not None, "the leader serves adapters and this follower does not"
        like = targets.like
        put = {
            name: LoraPair(
                a.to(like.device, like.dtype), b.to(like.device, like.dtype), scale, norms
            )
            for name, a, b, scale, norms in pairs
        }
        targets.put(slot, put)

    def _logits(self, shape: tuple[int, int], adapters: Tensor | None) -> None:
        self._note(adapters)
        hidden = torch.empty(shape, dtype=self._shard.model.dtype, device=self._device)
        self._ranks.broadcast(hidden, 0)
        self._shard.model.logits(hidden)

    @property
    def _host_pages(self) -> HostPages:
        assert self._host is not None, "the leader has host pages and this follower has none"
        return self._host

    @property
    def _own_update(self) -> ShardUpdate:
        assert self._update is not None, "the leader's weights change and those here do not"
        return self._update

    @property
    def _own_kv_transfer(self) -> FollowerKVTransfer:
        assert self._kv_transfer is not None, "the leader transfers KV and this follower does not"
        return self._kv_transfer


def follow(begin: Begin, commands: Reader) -> None:
    """Load this rank's shard, then execute commands.

    Raises:
        BatonError: it cannot be loaded. The leader exits when this process does.
    """
    config = Config(**begin.settings)
    setup(f"worker rank {begin.rank}", config.log_level)
    context = prepare(config, begin.rank)
    commands.device = context.device
    ranks, pipeline = join_stages(Path(begin.meeting), begin.rank, config, context.device)
    patches = tuple(map(Path, begin.patches))
    group = (ranks, None, pipeline)
    loaded, resolved, _ = load(config, Path(config.model), context, *group, patches)
    used = _shard(config, loaded, resolved)

    def load_beside(path: Path, patches: tuple[Path, ...]) -> Shard:
        beside = load_weights(config, path, context, *group, patches)
        return _shard(config, beside, trial_config(resolved))

    with (
        closing(_kv_transfer(begin, config, used.cache)) as kv_transfer,
        closing(ShardUpdate(load_beside)) as update,
    ):
        kv_transfer.start()
        follower = Follower(
            used,
            HostPages(used.cache, resolved.host_pages) if resolved.host_pages else None,
            ranks,
            kv_transfer=kv_transfer,
            update=update,
            buffers=_buffers(context.device),
            graphs=partial(_graphed, resolved, ranks),
            everyone=None if pipeline is None else pipeline.ranks,
        )
        del used, loaded  # A change of the weights frees them, once the follower alone has them.
        if pipeline is not None:
            kv_transfer.watch(lambda: follower.progress)
        follower.run(commands)


def _buffers(device: torch.device) -> Buffers:
    """On a GPU, one copy takes all indices of a step."""
    return StagedBuffers(device, CudaLink()) if device.type == "cuda" else Buffers(device)


def _graphed(resolved: EngineConfig, ranks: Communicator, shard: Shard) -> GraphedModel:
    """The recorder of steps of a shard, in agreement with the other ranks."""
    assert resolved.graphs is not None, "sizes are the same on all ranks"
    device = resolved.build.device
    return graphed_model(shard.model, shard.cache, resolved.graphs, device, None, ranks)


def _shard(config: Config, loaded: LoadedModel, resolved: EngineConfig) -> Shard:
    """This rank's part of a model, with pages."""
    assert isinstance(loaded.model, Model)
    targets = None
    if config.enable_lora:
        targets = LoraTargets(loaded.model, loaded.spec, loaded.parts)
    settings = page_settings(loaded, resolved)
    if resolved.pages is not None:
        _, settings["allocate"] = resolved.pages.lease(settings)
    return Shard(loaded.model, KVCache(**settings), targets, loaded.kept)


def _kv_transfer(begin: Begin, config: Config, cache: KVCache) -> FollowerKVTransfer:
    name = f"{config.name or default_name('worker')}/{begin.rank}"
    manager = KVTransferManager(cache, of_rank(config, begin.rank), name)
    return FollowerKVTransfer(manager, begin.rank, os.fdopen(begin.reports, "wb"))


def main() -> None:
    """Run until the leader exits; returns the exit code, which is nonzero if a restart can help."""
    die_with_parent(sys.stdin.buffer)
    commands = Reader(sys.stdin.buffer)
    begin = commands.next()
    assert isinstance(begin, Begin), "a follower is started by its leader"
    try:
        follow(begin, commands)
    except BatonError as error:
        print(f"baton worker, rank {begin.rank}: {error.message}", file=sys.stderr)
        hopeless = {"bad_model": EXIT_MODEL, "bad_settings": EXIT_SETTINGS}
        sys.exit(hopeless.get(error.code or "", EXIT_FAULT))
    except ConnectionError as error:
        # The leader learns of it too and ends, and this process with it: the exit code of the rank
        # that has ended counts, not this one's.
        log.error("%s", error)
        time.sleep(_LEADER_SECONDS)
        sys.exit(EXIT_GROUP)
    except Exception:
        log.exception("rank %d failed", begin.rank)
        sys.exit(EXIT_FAULT)
