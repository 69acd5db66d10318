"""Kernels in C++ for the CPU: built at first use, called through ctypes without the GIL."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from baton.logs import logger
from baton_worker.config import Config
from baton_worker.kernels.cpu import amx
from baton_worker.kernels.cpu.build import Builder, BuildError
from baton_worker.kernels.cpu.isa import IsaLevel, best, without_tiles
from baton_worker.platform import machine

log = logger(__name__)

_builder: Builder | None = None


def use(config: Config) -> None:
    """Use these build settings from now on, instead of those of the environment."""
    global _builder
    _builder = Builder(config.cxx, config.cache_dir / "kernels")
    library.cache_clear()
    supported_level.cache_clear()


def prepare() -> None:
    """Start building the kernels that this CPU needs and that are not built yet."""
    level = best(machine.instructions())
    if _builder is not None and level is not None:
        _find_openmp()
        _builder.prepare(level)


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The kernels of `<name>.cpp`; None, with one line in the log, if they cannot be built.

    The caller declares `argtypes` of what it calls: otherwise integers would be cut to 32 bits. A
    caller that gets None runs the torch twin.
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
    _find_openmp()
    level = supported_level(_builder)
    if level is None:
        raise BuildError("they need a CPU with AVX2")
    return _builder.library(name, level)


@cache
def supported_level(builder: Builder) -> IsaLevel | None:
    """The best level that this CPU runs; tiles are tried out, since some virtual machines list them
    but kill processes that use them."""
    flags = machine.instructions()
    level, without = best(flags), best(without_tiles(flags))
    if level is None or without is None or not level.has_tiles:
        return level
    try:
        reason = amx.refuses(builder.library("linear", level))
    except BuildError as error:
        # Raises if nothing can be built: that is one line in the log, and not about tiles.
        builder.library("linear", without)
        reason = str(error)
    if reason is None:
        return level
    log.warning("AMX is not used, many rows are slower: %s", reason)
    return without


def _find_openmp() -> None:
    """Kernels are linked to the OpenMP runtime that torch has loaded."""
    torch.get_num_threads()
