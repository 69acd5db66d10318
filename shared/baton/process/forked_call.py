"""Calls a function in a fork of this process, which isolates its threads and memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from baton.process.clone import die_with_parent

T = TypeVar("T")


def call_in_fork(function: Callable[[], T]) -> T:
    """Return the function's result, pickled. For a process with one thread: a fork has only the
    calling one.

    Raises:
        ChildProcessError: the function raised, with a traceback on standard error, or the fork
            crashed.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(function, sender))
    process.start()
    sender.close()
    with receiver:
        try:
            result: T = receiver.recv()
        except EOFError:
            process.join()
            raise ChildProcessError(f"a fork ended with status {process.exitcode}") from None
    process.join()
    return result


def _send(function: Callable[[], T], sender: Connection) -> None:
    die_with_parent()
    sender.send(function())
