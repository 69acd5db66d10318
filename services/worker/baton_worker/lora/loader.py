"""Loads adapters while the model serves: a thread reads the files, between steps they are added."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from baton.errors import BatonError
from baton.logs import logger
from baton.protocol import DropAdapter, LoadAdapter, WorkerCommand, WorkerReply
from baton_worker.lora.adapter import Adapter
from baton_worker.lora.modules import LoraModule
from baton_worker.lora.store import AdapterStore

log = logger(__name__)


class AdapterLoader:
    """Carries out the commands about adapters in order, and answers each.

    Args:
        store: store that adapters are added to, between two steps; None if none are served.
    """

    def __init__(self, store: AdapterStore | None) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._under_way: deque[tuple[WorkerCommand, Future[Adapter] | None]] = deque()

    def submit(self, command: WorkerCommand) -> None:
        """Start a command."""
        reading = None
        if isinstance(command.action, LoadAdapter) and self._store is not None:
            reading = self._thread.submit(self._store.read, command.action.path)
        self._under_way.append((command, reading))

    @property
    def busy(self) -> bool:
        """True if a command is in progress."""
        return bool(self._under_way)

    def finished(self) -> Iterator[WorkerReply]:
        """Add the adapters that have been read, and return answers. Call it between two steps."""
        while self._under_way:
            command, reading = self._under_way[0]
            if reading is not None and not reading.done():
                return
            self._under_way.popleft()
            yield self._finish(command, reading)

    def _finish(self, command: WorkerCommand, reading: Future[Adapter] | None) -> WorkerReply:
        store, action = self._store, command.action
        if store is None:
            why = "The workers serve no adapters: start them with --enable-lora."
            return WorkerReply(command.epoch, command.id, why)
        reason, digest = "", b""
        if isinstance(action, DropAdapter):
            store.drop(action.digest)
        elif isinstance(action, LoadAdapter) and reading is not None:
            try:
                adapter = reading.result()
                store.add(LoraModule(action.name, action.path), adapter)
                digest = adapter.digest
                log.info("adapter %s: %s", action.name, action.path)
            except (BatonError, OSError, RuntimeError, MemoryError) as error:
                reason = str(error)
                log.warning("adapter %s is not loaded: %s", action.name, reason)
        else:
            reason = f"A worker knows no {type(action).__name__}."
        return WorkerReply(command.epoch, command.id, reason, digest, store.infos)

    def reset(self) -> None:
        """Drop commands in progress without answers, since the scheduler has forgotten them."""
        self._under_way.clear()

    def close(self) -> None:
        """End the thread after its current command."""
        self._thread.shutdown(wait=False, cancel_futures=True)
