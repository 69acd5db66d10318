"""Waiting for a copy beside sockets."""

from __future__ import annotations

import select
import threading

import torch
from torch import Tensor

from baton_worker.platform.download_signal import DownloadSignal
from tests.support.served_system import until

_LONG = 60.0


class Copy:
    """A download that ends when it is told to."""

    def __init__(self) -> None:
        self.over = threading.Event()

    @property
    def ready(self) -> bool:
        return self.over.is_set()

    def wait(self) -> Tensor:
        self.over.wait()
        return torch.empty(0)


def readable(file: int, seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


def test_a_descriptor_is_readable_once_a_download_has_ended() -> None:
    signal = DownloadSignal()
    for _ in range(2):
        copy = Copy()
        file = signal.of(copy)
        assert file is not None and not readable(file, 0)
        copy.over.set()
        assert readable(file, _LONG)
        assert signal.of(copy) is None


def test_the_end_of_a_download_before_wakes_nobody_for_long() -> None:
    """It was read without this signal, and may end after another one is waited for."""
    signal, first, second = DownloadSignal(), Copy(), Copy()
    signal.of(first)
    signal.of(second)
    first.over.set()
    until(lambda: signal._ended is first, "the first has ended")
    file = signal.of(second)
    assert file is not None
    second.over.set()
    until(lambda: readable(file, _LONG) and signal.of(second) is None, "the second has ended")
