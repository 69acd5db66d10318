"""A follower rank: executes the leader's commands until the leader exits."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from baton.errors import BatonError
from baton.logs import logger, setup
from baton.process.lifecycle import (
    EXIT_FAULT,
    EXIT_MODEL,
    EXIT_SETTINGS,
    default_name,
)
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.process_groups import join
from baton_worker.engine.startup import load, page_settings, prepare
from baton_worker.executor.commands import (
    Begin,
    Clear,
    Copy,
    End,
    Forget,
    Forward,
    Load,
    Logits,
    Order,
    PutAdapter,
    Reader,
    Store,
    Take,
)
from baton_worker.executor.kv_transfer import FollowerKVTransfer, of_rank
from baton_worker.follower.parent_death import die_with_parent
from baton_worker.kernels.lora import LoraPair
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model

log = logger(__name__)


class Follower:
    """One rank's shard of a model and its pages. Knows no requests."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        host: HostPages | None,
        ranks: Communicator,
        relay: FollowerKVTransfer | None = None,
        targets: LoraTargets | None = None,
    ) -> None:
        """`targets`: the layers that take adapters, where adapters are served."""
        self._model, self._cache, self._host, self._ranks = model, cache, host, ranks
        self._relay, self._targets = relay, targets

    def run(self, orders: Reader) -> None:
        """Execute commands until `End`, or until the leader exits."""
        while not isinstance(order := orders.next(), End):
            self._obey(order)

    def _obey(self, order: Order) -> None:
        match order:
            case Forward():
                self._forward(order)
            case Logits(shape, adapters):
                self._logits(shape, adapters)
            case PutAdapter(slot, pairs):
                self._put_adapter(slot, pairs)
            case Copy(sources, targets):
                self._cache.copy(sources, targets)
            case Clear(page, first, group):
                self._cache.clear(page, first, group)
            case Store(pages, host):
                self._host_pages.store(pages, host)
            case Load(host, pages):
                self._host_pages.load(host, pages)
            case Take(message):
                self._own_relay.take(message)
            case Forget():
                self._own_relay.reset()
            case _:
                raise AssertionError(f"{type(order).__name__} is no order for a running follower")

    def _forward(self, order: Forward) -> None:
        device = order.tokens.device
        self._note(order.adapters)
        texts = by_length(order.batch.query_lens, device) if order.whole else ()
        self._model.forward(
            order.tokens, order.positions, order.batch, self._cache, texts, order.media
        )

    def _note(self, adapters: Tensor | None) -> None:
        """Each row has this adapter."""
        if adapters is not None and self._model.adapters is not None:
            self._model.adapters.write(adapters.cpu().numpy())

    def _put_adapter(self, slot: int, pairs: list[tuple[str, Tensor, Tensor, float]]) -> None:
        assert self._targets is not None, "the leader serves adapters and this follower does not"
        like = self._targets.like
        self._targets.put(
            slot,
            {
                name: LoraPair(a.to(like.device, like.dtype), b.to(like.device, like.dtype), scale)
                for name, a, b, scale in pairs
            },
        )

    def _logits(self, shape: tuple[int, int], adapters: Tensor | None) -> None:
        self._note(adapters)
        layer = self._cache.layers[0]
        hidden = torch.empty(shape, dtype=self._model.dtype, device=layer.device)
        self._ranks.broadcast(hidden, 0)
        self._model.logits(hidden)

    @property
    def _host_pages(self) -> HostPages:
        assert self._host is not None, "the leader has host pages and this follower has none"
        return self._host

    @property
    def _own_relay(self) -> FollowerKVTransfer:
        assert self._relay is not None, "the leader passes keys on and this follower does not"
        return self._relay


def follow(begin: Begin, orders: Reader) -> None:
    """Load this rank's shard, then execute commands.

    Raises:
        BatonError: it cannot be loaded. The leader exits when this process does.
    """
    config = Config(**begin.settings)
    setup(f"worker rank {begin.rank}", config.log_level)
    context = prepare(config, begin.rank)
    orders.device = context.device
    meeting = Path(begin.meeting)
    ranks = join(meeting, begin.rank, begin.size, context.device, in_order=config.exact)
    loaded, resolved, _ = load(config, Path(config.model), context, ranks)
    assert isinstance(loaded.model, Model)
    cache = KVCache(**page_settings(loaded, resolved))
    host = HostPages(cache, resolved.host_pages) if resolved.host_pages else None
    targets = None
    if config.enable_lora:
        targets = LoraTargets(loaded.model, loaded.spec, loaded.parts)
    with closing(_relay(begin, config, cache)) as relay:
        relay.start()
        Follower(loaded.model, cache, host, ranks, relay, targets).run(orders)


def _relay(begin: Begin, config: Config, cache: KVCache) -> FollowerKVTransfer:
    name = f"{config.name or default_name('worker')}/{begin.rank}"
    own = KVTransferManager(cache, of_rank(config, begin.rank), name)
    return FollowerKVTransfer(own, begin.rank, os.fdopen(begin.reports, "wb"))


def main() -> None:
    """Run until the leader exits; the exit code tells whether a restart can help."""
    die_with_parent(sys.stdin.buffer)
    orders = Reader(sys.stdin.buffer)
    begin = orders.next()
    assert isinstance(begin, Begin), "a follower is started by its leader"
    try:
        follow(begin, orders)
    except BatonError as error:
        print(f"baton worker, rank {begin.rank}: {error.message}", file=sys.stderr)
        hopeless = {"bad_model": EXIT_MODEL, "bad_settings": EXIT_SETTINGS}
        sys.exit(hopeless.get(error.code or "", EXIT_FAULT))
    except Exception:
        log.exception("rank %d failed", begin.rank)
        sys.exit(EXIT_FAULT)
