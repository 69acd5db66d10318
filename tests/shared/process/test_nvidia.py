from __future__ import annotations

from pathlib import Path

import pytest

from baton.process import nvidia


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(nvidia, "DRIVER", tmp_path)
    monkeypatch.setattr(nvidia, "DEVICES", tmp_path)
    return tmp_path


def test_without_a_driver_there_is_no_problem(driver: Path) -> None:
    assert nvidia.count() == 0 and nvidia.problem("2.13.0+cpu", None) == ""


def test_the_driver_and_the_build_are_named(driver: Path) -> None:
    (driver / "gpus" / "0000:01:00.0").mkdir(parents=True)
    (driver / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel 570.133.20 Sun")
    assert nvidia.count() == 1
    assert "built without CUDA" in nvidia.problem("2.13.0+cpu", None)
    assert "CUDA 13.0, and the driver is 570.133.20" in nvidia.problem("2.13.0", "13.0")


def test_devices_count_where_the_driver_lists_none(driver: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (driver / name).touch()
    assert nvidia.count() == 2
    assert "driver is unknown" in nvidia.problem("2.13.0", "13.0")
