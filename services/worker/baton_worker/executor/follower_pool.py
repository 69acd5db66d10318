"""The follower processes: started, commanded and watched by the leader."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from uuid import uuid4

import torch

from baton.logs import logger
from baton.process.exit_status import passed_on
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.pipeline_parallel import Pipeline
from baton_worker.executor.commands import Begin, Pipe
from baton_worker.executor.join_stages import join_stages
from baton_worker.executor.reports import Reports

log = logger(__name__)


def _end(rank: int, code: int) -> None:
    """Exit after the loss of a follower; the supervisor restarts the whole worker."""
    log.error("rank %d of this worker ended with code %d: the worker ends too", rank, code)
    os._exit(passed_on(code))


class FollowerPool:
    """Followers, rank 1 and up. Life cycle: construct, `join`, `commands`, `close`.

    Each follower holds the read end of a pipe that closes when this process exits, even after `kill
    -9`; it then exits too. When a follower exits, `lost` is called with its rank and exit code.

    Args:
        config: settings of this worker.
        path: local path of the model.
        patches: files with tensors that replace some of its own.
        lost: called on exit of a follower; by default this process exits.
    """

    def __init__(
        self,
        config: Config,
        path: Path,
        patches: Sequence[Path] = (),
        lost: Callable[[int, int], None] = _end,
    ) -> None:
        self._size, self._lost, self._closing = config.num_ranks, lost, False
        self._config, self._reported = config, set[int]()
        config.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._meeting = config.run_dir.absolute() / f"ranks-{uuid4().hex}"
        command = [sys.executable, "-m", "baton_worker.follower"]
        # A process group of its own, so that Ctrl-C reaches the leader only.
        start = partial(subprocess.Popen, command, stdin=subprocess.PIPE, process_group=0)
        pipes = [os.pipe() for _ in range(1, self._size)]
        self.processes = [start(pass_fds=[writing]) for _, writing in pipes]
        self._readers = [os.fdopen(reading, "rb") for reading, _ in pipes]
        self.commands = Pipe([cast(BinaryIO, process.stdin) for process in self.processes])
        known = set(Config.model_fields)  # A benchmark adds settings of its own.
        settings = config.model_dump(mode="json", include=known) | {"model": str(path)}
        self.reports = [Reports(reader) for reader in self._readers]
        for rank, (process, (_, writing)) in enumerate(zip(self.processes, pipes, strict=True), 1):
            os.close(writing)
            meeting, files = str(self._meeting), list(map(str, patches))
            begin = Begin(rank, self._size, meeting, settings, writing, files)
            Pipe([cast(BinaryIO, process.stdin)]).send(begin)
            watch = threading.Thread(target=self._watch, args=(rank, process), daemon=True)
            watch.start()

    def join(self, device: torch.device) -> tuple[Communicator, Pipeline | None]:
        """Join the process groups as rank 0; returns when all followers have joined."""
        return join_stages(self._meeting, 0, self._config, device)

    def close(self) -> None:
        """Stop all followers. One that has exited by itself is lost: its code says why, and what
        failed here only followed from it."""
        self._closing = True
        ended = [rank for rank, one in enumerate(self.processes, 1) if _has_ended(one)]
        for rank, process in enumerate(self.processes, 1):
            if rank not in ended:
                process.kill()
            process.communicate()
        for reader in self._readers:
            reader.close()
        for meeting in self._meeting.parent.glob(f"{self._meeting.name}*"):
            meeting.unlink(missing_ok=True)
        for rank in ended:
            self._report(rank, self.processes[rank - 1].returncode)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._closing:
            self._report(rank, code)

    def _report(self, rank: int, code: int) -> None:
        """Report a follower that has exited by itself, once."""
        if rank not in self._reported:
            self._reported.add(rank)
            self._lost(rank, code)


def _has_ended(process: subprocess.Popen[Any]) -> bool:
    """Whether a follower ends or has ended. The kernel closes its standard input before its
    connections to other ranks, and those before it reports the exit code."""
    assert process.stdin is not None
    if process.stdin.closed:
        return True
    poll = select.poll()
    poll.register(process.stdin, 0)  # No events requested: a reader that is gone is reported.
    return bool(poll.poll(0))
