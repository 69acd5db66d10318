"""Compile the C++ kernels at first use and keep the result.

Every `*.cpp` file beside this one is one library with a plain C interface, so a build needs no
torch headers and takes seconds. A library's file name contains the hash of everything that it
depends on: its source, the headers, the level, the options, the compiler and the OpenMP runtime. It
is written by an atomic rename, so no process sees a partial file. If several processes need it at
the same time, one builds it and the others wait.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path

from filelock import FileLock

from baton.logs import logger
from baton_worker.kernels.cpu.isa import IsaLevel

SOURCES = Path(__file__).parent
SHIPPED = SOURCES / "built"
"""Where an image build puts libraries, for images that run without a compiler."""
COMPILERS = ("g++", "c++", "clang++")
_OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Contraction would make a sum depend on the code path that the compiler chose.
    "-ffp-contract=off",
)
_TIMEOUT_SECONDS = 300
_RUNTIME = r"(/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so[^/\s]*)$"
"""A line of /proc/PID/maps that maps an OpenMP library."""

log = logger(__name__)


ON_DEMAND = frozenset({"block_linear", "trellis"})
"""Libraries that few checkpoints need."""


class BuildError(Exception):
    """A library cannot be built; the message is one sentence."""


def names() -> list[str]:
    """Every library that can be built."""
    return sorted(source.stem for source in SOURCES.glob("*.cpp"))


def openmp_runtime(maps: Path = Path("/proc/self/maps")) -> Path | None:
    """The OpenMP library that torch has loaded into this process; None if there is none. Kernels
    are linked against this file: a second runtime would have its own threads, which would compete
    for the cores.
    """
    if not maps.is_file():
        return None
    runtimes = [Path(path) for path in re.findall(_RUNTIME, maps.read_text(), re.M)]
    torchs = [path for path in runtimes if path.parts[-3:-1] == ("torch", "lib")]
    torchs += [path for path in runtimes if path.parent.name == "torch.libs"]
    systems = [path for path in runtimes if path.parent.suffix != ".libs"]
    return next(iter((*torchs, *systems)), None)


class Builder:
    """Finds or builds libraries.

    Args:
        compiler: name or path of a C++ compiler; empty means the first of `COMPILERS`.
        folder: where libraries are kept. Created when one is built.
    """

    def __init__(self, compiler: str, folder: Path) -> None:
        self._wanted, self._folder = compiler, folder
        self._under_way: dict[tuple[str, IsaLevel], Future[Path]] = {}

    def prepare(self, level: IsaLevel) -> None:
        """Start building everything that is missing but for `ON_DEMAND`, in parallel and in the
        background. `library` waits for builds in progress, and raises their errors.
        """
        needed = (name for name in names() if name not in ON_DEMAND)
        missing = [name for name in needed if self._existing(name, level) is None]
        if not missing or self._compiler is None:
            return
        log.info("building the CPU kernels for %s: once, some tens of seconds", level.name)
        pool = ThreadPoolExecutor(len(missing), "kernels")
        self._under_way |= {
            (name, level): pool.submit(self._build, name, level) for name in missing
        }
        pool.shutdown(wait=False)

    def library(self, name: str, level: IsaLevel) -> Path:
        """The shared object of one source, built if it does not exist.

        Raises:
            BuildError: it does not exist, and there is no compiler or compilation fails.
        """
        begun = self._under_way.pop((name, level), None)
        if begun is not None:
            return begun.result()
        existing = self._existing(name, level)
        if existing is not None:
            return existing
        if self._compiler is None:
            looked = self._wanted or ", ".join(COMPILERS)
            raise BuildError(
                f"no C++ compiler was found (looked for {looked}); install one, like the package "
                "g++, or name it with --compiler"
            )
        return self._build(name, level)

    @cached_property
    def _compiler(self) -> str | None:
        compilers = (self._wanted,) if self._wanted else COMPILERS
        return next((path for name in compilers if (path := shutil.which(name))), None)

    @cached_property
    def _version(self) -> str:
        assert self._compiler is not None
        done = subprocess.run(
            [self._compiler, "--version"], capture_output=True, text=True, check=False, timeout=30
        )
        return done.stdout

    def _existing(self, name: str, level: IsaLevel) -> Path | None:
        """A library built from this source: by this compiler, or by any if there is none."""
        if self._compiler is not None and (path := self._target(name, level)).is_file():
            return path
        folders = (SHIPPED,) if self._compiler is not None else (self._folder, SHIPPED)
        pattern = f"{_stem(name, level)}-*.so"
        return next((path for f in folders for path in sorted(f.glob(pattern))), None)

    def _target(self, name: str, level: IsaLevel) -> Path:
        made_by = _digest(self._version, _identity(openmp_runtime()))
        return self._folder / f"{_stem(name, level)}-{made_by}.so"

    def _build(self, name: str, level: IsaLevel) -> Path:
        target = self._target(name, level)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / f".{target.stem}.lock"):
                return target if target.is_file() else self._compile(name, level, target)
        except OSError as error:
            raise BuildError(f"{self._folder} cannot be written: {error.strerror}") from error

    def _compile(self, name: str, level: IsaLevel, target: Path) -> Path:
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".build-") as scratch:
            built = Path(scratch) / target.name
            for command in self._commands(name, level, built):
                _run(command)
            return built.replace(target)

    def _commands(self, name: str, level: IsaLevel, built: Path) -> Iterator[list[str]]:
        """Compile and link separately, since `-fopenmp` at link time would add a second runtime."""
        assert self._compiler is not None
        source, unit = SOURCES / f"{name}.cpp", built.with_suffix(".o")
        options = [*_OPTIONS, *level.options]
        yield [self._compiler, *options, "-c", str(source), "-o", str(unit)]
        runtime = openmp_runtime()
        link = ["-fopenmp"] if runtime is None else [str(runtime)]
        yield [self._compiler, "-shared", str(unit), *link, "-o", str(built)]


def _stem(name: str, level: IsaLevel) -> str:
    """Library name, level, and a digest of its inputs without the compiler."""
    headers = [header.read_text() for header in sorted(SOURCES.glob("*.h"))]
    source = (SOURCES / f"{name}.cpp").read_text()
    return f"{name}-{level.name}-{_digest(source, *headers, *_OPTIONS, *level.options)}"


@cache
def _identity(runtime: Path | None) -> str:
    """Name and content of an OpenMP library. Kernels that are linked to it do not name its folder:
    they serve every environment that has the same one."""
    if runtime is None:
        return "linked to no runtime"
    return f"linked to {runtime.name} {hashlib.sha256(runtime.read_bytes()).hexdigest()}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {_TIMEOUT_SECONDS} seconds") from error
    if done.returncode != 0:
        problems = [line for line in done.stderr.splitlines() if "error: " in line]
        reason = problems[0] if problems else f"exit status {done.returncode}"
        raise BuildError(f"{command[0]} could not build it: {reason}")
