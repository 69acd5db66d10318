"""Images of the containers, built while other tests run, by
`python -m tests.support.container_images`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
CONTAINERS = "tests/system/test_compose.py"
COMPILED = ROOT / ".baton" / "compiled"
"""Kernels of this machine, for the image of its workers."""


class ContainerImages:
    """A plug-in for the process that deals out tests: with the first list of tests that has those
    of the containers, a build begins. Their fixture builds too: it finds what is done in the
    engine's cache, shares what is being done, and is the one that tells what failed."""

    def __init__(self) -> None:
        self._build: subprocess.Popen[bytes] | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        wanted = any(name.startswith(f"{CONTAINERS}::") for name in ids)
        if wanted and self._build is None and shutil.which("docker"):
            self._build = subprocess.Popen(
                [sys.executable, "-m", "tests.support.container_images"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def pytest_unconfigure(self) -> None:
        if self._build is not None:
            self._build.terminate()
            self._build.wait()


def compile_kernels() -> None:
    """Fill `COMPILED` with what the tests of this machine compile all the same, so that the image
    compiles it only where its compiler or its OpenMP runtime is another. Who comes second waits."""
    import torch

    from baton_worker.config import Config
    from baton_worker.kernels.cpu import supported_level
    from baton_worker.kernels.cpu.build import Builder, BuildError, names

    COMPILED.mkdir(parents=True, exist_ok=True)
    torch.get_num_threads()  # Loads the OpenMP runtime.
    config = Config.load()
    builder = Builder(config.cxx, config.cache_dir / "kernels")
    with FileLock(COMPILED.with_suffix(".lock")):
        try:
            level = supported_level(builder)
            made = [builder.library(name, level) for name in names()] if level else []
        except BuildError:  # No compiler here: the image has one.
            made = []
        for old in {path.name for path in COMPILED.iterdir()} - {path.name for path in made}:
            (COMPILED / old).unlink()
        for path in made:
            if not (COMPILED / path.name).exists():
                shutil.copy(path, COMPILED)


if __name__ == "__main__":
    compile_kernels()
    os.environ["BATON_COMPOSE_COMPILED"] = str(COMPILED)
    os.execvp("docker", ["docker", "compose", "build"])
