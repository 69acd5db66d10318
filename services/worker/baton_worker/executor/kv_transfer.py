"""KV transfer of several ranks: each rank pulls from the same rank of the source.

    scheduler -- Grant, Pull --> leader -- commands --> followers
                                 rank 0 <==== KV ==== rank 0 of the source
                                 rank 1 <==== KV ==== rank 1 of the source
    scheduler <----- Pulled ---- leader <-- reports -- followers

The scheduler sees one worker with one address: the comma-separated addresses of all ranks. A pull
succeeds if it has on all ranks, and fails if it fails on one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, TypeAlias

import msgspec

from baton.errors import SettingsError
from baton.protocol import Grant, Pull, Pulled, Revoke
from baton_worker.config import Config
from baton_worker.executor.commands import Forget, Pipe, Take
from baton_worker.executor.reports import (
    Ended,
    Progressed,
    Reports,
    Serving,
    send,
)
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.kv_transfer.transport import Transport

_POLL_SECONDS = 0.002
"""Poll interval in seconds for the results of followers."""

_BEAT_SECONDS = 0.5
"""Interval of a stage's progress reports while it computes; far below the time after which a worker
counts as hanging."""

Key: TypeAlias = tuple[int, int]
"""Epoch and id of a pull."""


def of_rank(config: Config, rank: int) -> Config:
    """The settings for the KV transfer of one rank.

    Raises:
        SettingsError: there are addresses, but not one per rank.
    """
    size = config.num_ranks
    for name in ("bind_kv", "advertise_kv"):
        addresses = getattr(config, name)
        if addresses and len(addresses.split(",")) != size:
            raise SettingsError(
                f"--{name.replace('_', '-')} {addresses}: {size} ranks serve their pages at {size} "
                "addresses. Give one for each, by commas."
            )
    bound, advertised = config.bind_kv, config.advertise_kv
    return config.model_copy(
        update={
            "bind_kv": bound.split(",")[rank] if bound else "",
            "advertise_kv": advertised.split(",")[rank] if advertised else "",
        }
    )


def part(pull: Pull, rank: int) -> Pull:
    """One rank's share of a pull."""
    return msgspec.structs.replace(pull, address=pull.address.split(",")[rank])


class LeaderKVTransfer:
    """KV transfer of the leader: repeats every request on all ranks. Same interface as
    `kv_transfer.manager.KVTransferManager`."""

    def __init__(
        self, manager: KVTransferManager, commands: Pipe, followers: list[Reports], stages: str = ""
    ) -> None:
        """`stages` are the layers of each stage, where there are several: KV is transferred between
        workers with the same stages."""
        self._own, self._commands, self._followers = manager, commands, followers
        self._size = 1 + len(followers)
        self._waiting: dict[Key, list[Pulled]] = {}
        """Running pulls, with the results of the ranks that have finished."""
        self._pulled: deque[Pulled] = deque()
        """Results reported by followers."""
        self._progress = [0] * len(followers)
        """By follower: the number of its progress reports."""
        self.address = ",".join([manager.address, *map(_address, followers)])
        self.layout = f"{manager.layout}/{self._size} ranks{stages}"

    @property
    def transports(self) -> dict[str, Transport]:
        """Those of this rank."""
        return self._own.transports

    @property
    def busy(self) -> bool:
        """Whether KV is being pulled into any rank."""
        return bool(self._waiting)

    @property
    def progress(self) -> int:
        """A counter that advances while other stages run a step."""
        return sum(self._progress)

    def start(self) -> None:
        """Start this rank's transfer and the threads that read reports."""
        self._own.start()
        for number in range(len(self._followers)):
            threading.Thread(target=self._receive_reports, args=(number,), daemon=True).start()

    def close(self) -> None:
        """Close this rank's transfer. Followers exit with the leader."""
        self._own.close()

    def reset(self) -> None:
        """Forget all transfers, on every rank before its next command."""
        self._commands.send(Forget())
        self._own.reset()
        self._waiting.clear()
        self._pulled.clear()

    def take(self, message: Grant | Revoke | Pull) -> None:
        """Handle a scheduler message on every rank."""
        if not isinstance(message, Pull):
            self._commands.send(Take(message))
            self._own.take(message)
            return
        self._waiting[message.epoch, message.id] = []
        there = len(message.address.split(","))
        if there == self._size:
            self._commands.send(Take(message))
            self._own.take(part(message, 0))
        else:
            reason = f"the source has {there} ranks and this worker {self._size}"
            self._pulled.extend([Pulled(message.epoch, message.id, reason)] * self._size)

    def finished(self) -> list[Pulled]:
        """Pulls that have ended on every rank since the last call."""
        for pulled in [*self._own.finished(), *self._num_reports()]:
            # A result from before a reset has another epoch and is dropped.
            self._waiting.get((pulled.epoch, pulled.id), []).append(pulled)
        ended = [key for key, parts in self._waiting.items() if len(parts) == self._size]
        return [_together(self._waiting.pop(key)) for key in ended]

    def _num_reports(self) -> list[Pulled]:
        return [self._pulled.popleft() for _ in range(len(self._pulled))]

    def _receive_reports(self, number: int) -> None:
        while (report := self._followers[number].next()) is not None:
            if isinstance(report, Progressed):
                self._progress[number] = report.count
                continue
            assert isinstance(report, Ended)
            self._pulled.append(report.pulled)


def _address(follower: Reports) -> str:
    """Address at which a follower serves its pages. Waits for its first report."""
    report = follower.next()
    if not isinstance(report, Serving):
        raise ConnectionError("a follower ended before it served its pages")
    return report.address


def _together(parts: list[Pulled]) -> Pulled:
    """Combine the results of all ranks."""
    first = next((p for p in parts if p.reason), parts[0])
    return msgspec.structs.replace(
        first,
        num_bytes=sum(p.num_bytes for p in parts),
        duration_us=max(p.duration_us for p in parts),
    )


class FollowerKVTransfer:
    """KV transfer of a follower: `start`; then `take` and `reset` on command; `close`."""

    def __init__(self, manager: KVTransferManager, rank: int, reports: BinaryIO) -> None:
        self._own, self._rank, self._reports = manager, rank, reports
        self._layers: Callable[[], int] | None = None
        self._reported_layers = self._num_reports = 0
        self._lock = threading.Lock()
        self._pulling = threading.Event()

    def start(self) -> None:
        """Serve this rank's pages; report their address, and later the result of each pull."""
        self._own.start()
        send(self._reports, Serving(self._own.address))
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def watch(self, layers: Callable[[], int]) -> None:
        """Tell the leader when this number changes, the layers that were run here: while an earlier
        stage computes, the leader waits."""
        self._layers = layers

    def take(self, message: Grant | Revoke | Pull) -> None:
        """Do this rank's share."""
        with self._lock:
            if isinstance(message, Pull):
                message = part(message, self._rank)
                self._pulling.set()
            self._own.take(message)

    def reset(self) -> None:
        """Forget all transfers."""
        with self._lock:
            self._own.reset()

    def close(self) -> None:
        """Close both sides."""
        with self._lock:
            self._layers = None
            self._own.close()

    def _run(self) -> None:
        while True:
            pulling = self._pulling.wait(_BEAT_SECONDS)
            self._tell_progress()
            if not pulling:
                continue
            with self._lock:
                ended = self._own.finished()
                if not self._own.busy:
                    self._pulling.clear()
            for pulled in ended:
                send(self._reports, Ended(pulled))
            time.sleep(_POLL_SECONDS)

    def _tell_progress(self) -> None:
        with self._lock:
            if self._layers is not None and (layers := self._layers()) != self._reported_layers:
                self._reported_layers, self._num_reports = layers, self._num_reports + 1
                send(self._reports, Progressed(self._num_reports))
