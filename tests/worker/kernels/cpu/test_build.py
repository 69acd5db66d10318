"""Building the kernels: one OpenMP runtime, results kept, clear words when it cannot be done."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from baton_worker.config import Config
from baton_worker.kernels import cpu
from baton_worker.kernels.cpu import build
from baton_worker.kernels.cpu.build import Builder, BuildError
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel, best
from baton_worker.platform.machine import instructions

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler here"
)
LEVEL = LEVELS[-1]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small kernel, in place of the real ones."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "seven.h").write_text("#define SEVEN 7\n")
    (folder / "seven.cpp").write_text('#include "seven.h"\nextern "C" int f() { return SEVEN; }\n')
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setattr(build, "SHIPPED", folder / "built")
    torch.get_num_threads()
    return folder


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", build.names())
def test_every_kernel_builds_at_every_level(name: str, unoptimised: Builder) -> None:
    """As it is used at the level of this CPU, in the user's cache; with the options of the other
    levels without optimisation. An image build optimises at all."""
    kept = Builder("", Config.load().cache_dir / "kernels")
    here = best(instructions())
    for level in LEVELS:
        builder = kept if level is here else unoptimised
        assert builder.library(name, level).is_file(), level.name


@needs_compiler
def test_a_library_is_built_once(sources: Path, tmp_path: Path) -> None:
    builder = Builder("", tmp_path / "kept")
    path = builder.library("seven", LEVEL)
    made = path.stat().st_mtime_ns
    assert ctypes.CDLL(str(path)).f() == 7
    assert builder.library("seven", LEVEL) == path and path.stat().st_mtime_ns == made
    assert [p.name for p in path.parent.glob("[!.]*")] == [path.name]


@needs_compiler
def test_what_is_begun_ahead_is_waited_for(sources: Path, tmp_path: Path) -> None:
    (sources / "eight.cpp").write_text('extern "C" int f() { return 8; }\n')
    builder = Builder("", tmp_path / "kept")
    builder.prepare(LEVEL)
    found = [ctypes.CDLL(str(builder.library(name, LEVEL))).f() for name in ("seven", "eight")]
    assert found == [7, 8]
    builder.prepare(LEVEL)
    assert builder.library("seven", LEVEL).is_file()


@needs_compiler
def test_what_fails_ahead_is_said_when_it_is_needed(sources: Path, tmp_path: Path) -> None:
    (sources / "eight.cpp").write_text("no C++ at all\n")
    builder = Builder("", tmp_path / "kept")
    builder.prepare(LEVEL)
    assert builder.library("seven", LEVEL).is_file()
    with pytest.raises(BuildError, match="could not build it"):
        builder.library("eight", LEVEL)


@needs_compiler
def test_a_changed_header_or_level_builds_anew(sources: Path, tmp_path: Path) -> None:
    builder = Builder("", tmp_path / "kept")
    first = builder.library("seven", LEVEL)
    (sources / "seven.h").write_text("#define SEVEN 8\n")
    second = builder.library("seven", LEVEL)
    assert ctypes.CDLL(str(second)).f() == 8
    assert len({first, second, builder.library("seven", LEVELS[0])}) == 3


@needs_compiler
def test_what_was_begun_for_one_level_is_not_taken_for_another(
    sources: Path, tmp_path: Path
) -> None:
    builder = Builder("", tmp_path)
    builder.prepare(LEVELS[-2])
    assert LEVEL.name in builder.library("seven", LEVEL).name.split("-")
    assert LEVELS[-2].name in builder.library("seven", LEVELS[-2]).name.split("-")


@needs_compiler
def test_of_builds_at_the_same_time_one_compiles(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, run = list[list[str]](), build._run
    monkeypatch.setattr(build, "_run", lambda command: (commands.append(command), run(command)))
    builders = [Builder("", tmp_path / "kept") for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        paths = set(pool.map(lambda builder: builder.library("seven", LEVEL), builders))
    assert len(paths) == 1 and ctypes.CDLL(str(paths.pop())).f() == 7
    assert len(commands) == 2, "one compiles and links"


@needs_compiler
def test_a_shipped_library_needs_no_compiler(sources: Path, tmp_path: Path) -> None:
    shipped = Builder("", build.SHIPPED).library("seven", LEVEL)
    assert Builder("no-such-compiler", tmp_path).library("seven", LEVEL) == shipped
    (sources / "seven.h").write_text("#define SEVEN 8\n")
    with pytest.raises(BuildError, match="no-such-compiler"):
        Builder("no-such-compiler", tmp_path).library("seven", LEVEL)


@needs_compiler
def test_errors_of_the_compiler_are_told(sources: Path, tmp_path: Path) -> None:
    (sources / "seven.cpp").write_text("int f() { return EIGHT; }\n")
    with pytest.raises(BuildError, match="EIGHT"):
        Builder("", tmp_path).library("seven", LEVEL)


@needs_compiler
def test_a_folder_that_cannot_be_written_is_told(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"):
        Builder("", tmp_path / "file").library("seven", LEVEL)


@needs_compiler
def test_environments_with_the_same_runtime_share_libraries(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = build.openmp_runtime()
    assert runtime is not None
    found = []
    for name in ("one/libgomp.so.1", "two/libgomp.so.1", "two/libgomp-a34b.so.1"):
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(runtime, copy)
        monkeypatch.setattr(build, "openmp_runtime", lambda copy=copy: copy)
        found.append(Builder("", tmp_path / "kept").library("seven", LEVEL))
    assert found[0] == found[1] != found[2]


@needs_compiler
def test_there_is_one_openmp_runtime() -> None:
    """A process of its own: others in this one may have loaded what they like."""
    program = (
        "import re, pathlib, torch\n"
        "from baton_worker.kernels.cpu import library\n"
        "assert library('linear') is not None\n"
        "maps = pathlib.Path('/proc/self/maps').read_text()\n"
        "print(len(set(re.findall(r'\\S*/lib(?:gomp|omp|iomp5)\\S*', maps))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_without_a_runtime_in_the_process_none_is_found(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    assert build.openmp_runtime(maps) is None
    maps.write_text("7f00-7f01 r-xp 0 0:0 1  /usr/lib/libc.so.6\n")
    assert build.openmp_runtime(maps) is None
    maps.write_text("7f00-7f01 r-xp 0 0:0 1  /x/torch.libs/libgomp-a34b.so.1.0.0\n")
    assert build.openmp_runtime(maps) == Path("/x/torch.libs/libgomp-a34b.so.1.0.0")


@pytest.mark.parametrize(
    "torchs",
    ["/x/torch/lib/libgomp.so.1", "/x/torch.libs/libgomp-a34b.so.1", "/usr/lib/libgomp.so.1"],
)
@pytest.mark.parametrize("first", [True, False])
def test_the_runtime_of_another_package_is_not_that_of_torch(
    tmp_path: Path, torchs: str, first: bool
) -> None:
    """Where libraries are mapped is a matter of chance; one linked to sentencepiece's runtime
    could not be opened by a process without sentencepiece."""
    maps = tmp_path / "maps"
    others = "/x/sentencepiece.libs/libgomp-6a29.so.1.0.0"
    paths = [torchs, others] if first else [others, torchs]
    maps.write_text("".join(f"7f00-7f01 r-xp 0 0:0 1  {path}\n" for path in paths))
    assert build.openmp_runtime(maps) == Path(torchs)
    maps.write_text(f"7f00-7f01 r-xp 0 0:0 1  {others}\n")
    assert build.openmp_runtime(maps) is None


@pytest.mark.parametrize("level", LEVELS[:2], ids=lambda level: level.name)
def test_no_kernels_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: IsaLevel
) -> None:
    monkeypatch.setattr(cpu, "_builder", Builder("no-such-compiler", Path("/nowhere")))
    monkeypatch.setattr(build, "SHIPPED", Path("/nowhere"))
    monkeypatch.setattr(cpu.machine, "instructions", lambda: level.needs)
    cpu.library.cache_clear()
    assert cpu.library("linear") is None and cpu.library("linear") is None
    cpu.library.cache_clear()
    [record] = caplog.records
    assert "no-such-compiler" in record.message and "install" in record.message
    assert "kernels are not used" in record.message


def test_levels_are_chosen_by_flags() -> None:
    assert best(frozenset({"sse2"})) is None
    for level in LEVELS:
        assert best(level.needs) == level
    assert best(LEVELS[0].needs | {"amx_fp16"}) == LEVELS[0]
