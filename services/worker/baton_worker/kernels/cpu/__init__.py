"""Kernels in C++ for the CPU: built at first use, called through ctypes without the GIL."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from baton.logs import logger
from baton_worker import machine
from baton_worker.config import Config
from baton_worker.kernels.cpu.build import Builder, BuildError
from baton_worker.kernels.cpu.level import best

log = logger(__name__)

_builder: Builder | None = None


def use(config: Config) -> None:
    """Build with these settings from now on. Without this call the environment's are read."""
    global _builder
    _builder = Builder(config.compiler, config.cache_dir / "kernels")
    library.cache_clear()


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The kernels of `<name>.cpp`; None, with one line in the log, where they cannot be had.

    The caller declares `argtypes` of what it calls: integers would be cut to 32 bits otherwise.
    Whoever gets None runs the plain twin.
    """
    try:
        return ctypes.CDLL(str(_built(name)))
    except (BuildError, OSError) as error:
        log.warning("the %s kernels are not used, steps are slower: %s", name, error)
        return None


def _built(name: str) -> Path:
    if _builder is None:
        use(Config.load())
    assert _builder is not None
    level = best(machine.instructions())
    if level is None:
        raise BuildError("they need a CPU with AVX2")
    torch.get_num_threads()  # The OpenMP runtime is found where torch has mapped it.
    return _builder.library(name, level)
