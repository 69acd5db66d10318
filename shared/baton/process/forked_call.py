"""Calls a function in a fork of this process: what it starts and writes ends with the fork."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from baton.process.clone import die_with_parent

T = TypeVar("T")


def call_in_fork(function: Callable[[], T]) -> T:
    """What the function returns, which is pickled on its way. For a process with one thread: a fork
    has no other.

    Raises:
        ChildProcessError: the function raised, which is on standard error, or the fork died.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(function, sender))
    process.start()
    sender.close()
    with receiver:
        try:
            found: T = receiver.recv()
        except EOFError:
            process.join()
            raise ChildProcessError(f"a fork ended with status {process.exitcode}") from None
    process.join()
    return found


def _send(function: Callable[[], T], sender: Connection) -> None:
    die_with_parent()
    sender.send(function())
