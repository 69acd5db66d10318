"""Images of the containers, built while other tests run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERS = "tests/system/test_compose.py"


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
                ["docker", "compose", "build"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def pytest_unconfigure(self) -> None:
        if self._build is not None:
            self._build.terminate()
            self._build.wait()
