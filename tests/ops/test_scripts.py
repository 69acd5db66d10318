"""The shell scripts that the Makefile, the Dockerfile and continuous integration share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Fake = Callable[[str, str], Path]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory of commands that is all a script finds, but for the basic ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


@pytest.fixture
def fake(path: Path) -> Fake:
    """Make a command from shell code."""

    def make(name: str, code: str) -> Path:
        command = path / name
        command.write_text(f"#!/bin/sh\n{code}\n")
        command.chmod(0o755)
        return command

    return make


def script(
    name: str, *arguments: str, path: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
    return subprocess.run(
        ["/bin/sh", str(ROOT / "ops" / name), *arguments],
        env={**kept, "PATH": str(path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_is_found(path: Path) -> None:
    (path / "python3").symlink_to(sys.executable)
    done = script("python.sh", path=path)
    assert done.stdout.strip() == str(path / "python3"), done.stderr


def test_a_python_that_is_too_new_is_passed_over(fake: Fake, path: Path) -> None:
    fake("python3.14", "exit 1")
    fake("python3.11", "exit 0")
    assert script("python.sh", path=path).stdout.strip() == str(path / "python3.11")


def test_a_python_without_venv_is_named_with_its_package(fake: Fake, path: Path) -> None:
    fake("python3", 'case "$2" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac')
    done = script("python.sh", path=path)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("apt-get install python3.12-venv")


def test_no_python_is_said(path: Path) -> None:
    done = script("python.sh", path=path)
    assert done.returncode == 1
    assert "apt-get install python3 python3-venv" in done.stderr


ANSWERS = 'case "$1" in -c) exit 0;; *) echo "$@";; esac'
SILENT = 'case "$1" in -c) exit 1;; *) echo "$@";; esac'


@pytest.mark.parametrize(
    ("code", "gpu", "environment", "wanted"),
    [
        (ANSWERS, False, {}, "--index-url https://download.pytorch.org/whl/cpu torch==2.13.0"),
        (SILENT, False, {}, "--disable-pip-version-check torch==2.13.0"),
        (ANSWERS, True, {}, "--disable-pip-version-check torch==2.13.0"),
        (
            SILENT,
            True,
            {"BATON_TORCH_INDEX": "https://index", "BATON_TORCH_VERSION": "2.9.1"},
            "--index-url https://index torch==2.9.1",
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the CPU index is for Linux")
def test_torch_comes_from_the_right_index(
    fake: Fake, path: Path, code: str, gpu: bool, environment: dict[str, str], wanted: str
) -> None:
    python = fake("python", code)
    fake("uname", "echo Linux")
    if gpu:
        fake("nvidia-smi", "exit 0")
    done = script("torch.sh", str(python), path=path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(wanted)
