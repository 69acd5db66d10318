"""Weight updates of a worker: a thread receives and loads, between steps they are tried out.

init_weight_transfer --> thread: join a group with a trainer --> answer
update_weights --> thread: receive --> answer
load_weights ----> thread: check the files, load --> main thread: one step on them --> answer
switch_weights --> main thread: `take`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Never, TypeAlias

from msgspec import structs

from baton.errors import BatonError
from baton.logs import logger
from baton.protocol import (
    DropWeights,
    InitWeightTransfer,
    LoadWeights,
    UpdateWeights,
    WeightSource,
    WeightVersion,
    WorkerCommand,
    WorkerReply,
)
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.weight_transfer.broadcast import Membership
from baton_worker.weight_transfer.contents import check
from baton_worker.weight_transfer.receive import receive
from baton_worker.weight_transfer.spool import WeightSpool

Loaded: TypeAlias = tuple[WeightVersion, LoadedModel]
_Work: TypeAlias = Future[WeightSource] | Future[LoadedModel] | Future[None]
_TROUBLE = (BatonError, OSError, RuntimeError, MemoryError)
"""Errors of the environment: files, memory of the host, memory of a device."""

log = logger(__name__)


class WeightUpdater:
    """Carries out the commands about weights in order, and answers each.

    Args:
        spool: the files of this model.
        load: builds the model with other weights, beside the one in use; on any thread.
        try_out: runs a step of such a model; returns why it cannot be used, or an empty string.
        drop: the last model that was loaded is not used.
        blocker: why weights cannot change here; None if they can.
    """

    def __init__(
        self,
        spool: WeightSpool,
        load: Callable[[WeightVersion], LoadedModel],
        try_out: Callable[[LoadedModel], str],
        drop: Callable[[], None],
        blocker: str | None = None,
    ) -> None:
        self._spool, self._load, self._try_out, self._blocker = spool, load, try_out, blocker
        self._drop = drop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._member = Membership()
        self._under_way: deque[tuple[WorkerCommand, _Work | None]] = deque()
        self._loaded: Loaded | None = None

    @classmethod
    def without_engine(cls, spool: WeightSpool) -> WeightUpdater:
        """Of a worker that sleeps: it refuses all."""

        def refuse(_: object) -> Never:
            raise AssertionError("it has a blocker")

        return cls(spool, refuse, refuse, lambda: None, "A worker that sleeps gets no weights.")

    def submit(self, command: WorkerCommand) -> None:
        """Start a command."""
        work: _Work | None = None
        if self._blocker is None:
            match command.action:
                case InitWeightTransfer():
                    work = self._thread.submit(self._member.join, *structs.astuple(command.action))
                case UpdateWeights(transfer):
                    work = self._thread.submit(receive, transfer, self._spool, self._member)
                case LoadWeights(version):
                    work = self._thread.submit(self._checked, version)
        self._under_way.append((command, work))

    def _checked(self, version: WeightVersion) -> LoadedModel:
        for source in version.sources:
            check(source)
        return self._load(version)

    @property
    def busy(self) -> bool:
        """True if a command is in progress."""
        return bool(self._under_way)

    def finished(self) -> Iterator[WorkerReply]:
        """Answers to the commands that are done. Call it between two steps."""
        while self._under_way:
            command, work = self._under_way[0]
            if work is not None and not work.done():
                return
            self._under_way.popleft()
            yield self._finish(command, work)

    def _finish(self, command: WorkerCommand, work: _Work | None) -> WorkerReply:
        reply = WorkerReply(command.epoch, command.id, self._blocker or "")
        if isinstance(command.action, DropWeights):
            self._loaded = None
            self._drop()
        if work is None:
            return reply
        try:
            return self._done(command, work, reply)
        except _TROUBLE as error:
            reason = error.message if isinstance(error, BatonError) else str(error)
            log.warning("the weights are not changed: %s", reason)
            return WorkerReply(command.epoch, command.id, reason or type(error).__name__)

    def _done(self, command: WorkerCommand, work: _Work, reply: WorkerReply) -> WorkerReply:
        result = work.result()
        if result is None:
            return reply
        if isinstance(result, WeightSource):
            return WorkerReply(reply.epoch, reply.id, digest=result.digest, source=result)
        assert isinstance(command.action, LoadWeights)
        version = command.action.version
        if why := self._try_out(result):
            log.warning("weights %s are not used: %s", version.label, why)
            return WorkerReply(reply.epoch, reply.id, why)
        self._loaded = version, result
        log.info("weights %s are loaded", version.label)
        return WorkerReply(reply.epoch, reply.id, digest=version.digest)

    def take(self, digest: bytes) -> Loaded | None:
        """The loaded weights, to be used from now on; None if others, or none, are loaded."""
        loaded, self._loaded = self._loaded, None
        return loaded if loaded is not None and loaded[0].digest == digest else None

    def reset(self) -> None:
        """Forget commands and weights, since the scheduler has."""
        self._under_way.clear()
        self._loaded = None
        self._drop()

    def close(self) -> None:
        """End the thread after its current command, and wait for no trainer."""
        self._member.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
