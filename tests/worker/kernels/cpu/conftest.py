"""Products at every level of instructions."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import shutil
from functools import cache
from pathlib import Path

import pytest

from baton_worker.config import Config
from baton_worker.kernels import cpu
from baton_worker.kernels.cpu import build, library
from baton_worker.kernels.cpu.build import Builder
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.platform.machine import instructions

_TILES = Path(__file__).parents[3] / "fakes/tiles.h"


def _in_software() -> IsaLevel:
    """AMX with its instructions in C++, on any CPU that has the others."""
    amx, without = LEVELS[:2]
    assert amx.name == "amx"
    digest = hashlib.sha256(_TILES.read_bytes()).hexdigest()[:8]
    # Half of the compiler's time. No user runs this level, and sums keep their order at any.
    given = ("-O1", "-D__AMX_TILE__", "-D__AMX_BF16__", f"-DTILES_{digest}", f"-include{_TILES}")
    named = dataclasses.replace(without, name="tiles-in-software")
    return dataclasses.replace(named, options=(*without.options, *given))


IN_SOFTWARE = _in_software()


@pytest.fixture(params=[*LEVELS, IN_SOFTWARE], ids=lambda level: level.name)
def at_every_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> IsaLevel:
    """A CPU with more instructions runs the kernels of the older ones too."""
    level: IsaLevel = request.param
    if not level.needs <= instructions():
        pytest.skip(f"this CPU has no {level.name}")
    library("linear")
    assert cpu._builder is not None
    if level.has_tiles and cpu.supported_level(cpu._builder) is not level:
        pytest.skip("this CPU lists tiles and has none")
    run_at(level, monkeypatch)
    return level


_UNOPTIMISED = """#!/bin/sh
# The last level of optimisation counts. Instructions that a level lacks are an error at any.
options=
for given in "$@"; do
  [ "$given" = -c ] && break
  options="$options $given"
done
[ "$given" = -c ] || exec {compiler} "$@" -O0
# Headers of the system are three quarters of what is read: once for each level.
headers={headers}.$(echo "$options" | cksum | cut -d' ' -f1).h
if [ ! -f $headers.gch ]; then
  cp {headers} $headers
  {compiler} $options -O0 -x c++-header $headers -o $headers.$$ && mv $headers.$$ $headers.gch
fi
exec {compiler} "$@" -O0 -include $headers
"""


@pytest.fixture(scope="session")
def unoptimised(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A builder of libraries whose speed does not matter, in a tenth of the time. They are kept in
    the user's cache, as the optimised ones are."""
    found = [path for name in build.COMPILERS if (path := shutil.which(name))]
    if not found:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("unoptimised")
    compiler, headers = folder / "compiler", folder / "headers.h"
    lines = {
        line for path in build.SOURCES.glob("*.[ch]*") for line in path.read_text().split("\n")
    }
    headers.write_text("\n".join(sorted(line for line in lines if line.startswith("#include <"))))
    compiler.write_text(_UNOPTIMISED.format(compiler=found[0], headers=headers))
    compiler.chmod(0o755)
    way = hashlib.sha256(_UNOPTIMISED.encode()).hexdigest()[:8]
    return Builder(str(compiler), Config.load().cache_dir / f"kernels-unoptimised-{way}")


def run_at(level: IsaLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products use the kernels of this level."""
    builder = cpu._builder
    assert builder is not None

    @cache
    def of_level(name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(builder.library(name, level)))

    monkeypatch.setattr("baton_worker.kernels.cpu.linear.library", of_level)
