"""Profiles of steps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch

from baton_worker.platform.profiler import OFF, Profiler
from baton_worker.platform.profiler_config import ProfilerConfig


def operators(path: Path) -> set[str]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    # Kineto copies names of threads unescaped: a control character among them is not ours.
    trace = json.loads(data.decode("utf-8", "replace"), strict=False)
    return {event["name"] for event in trace["traceEvents"]}


def profiler(folder: Path, **fields: Any) -> Profiler:
    fields = {"torch_profiler_with_stack": False} | fields
    return Profiler(ProfilerConfig(torch_profiler_dir=str(folder), **fields), "worker-1")


def test_a_trace_has_what_ran_meanwhile(tmp_path: Path) -> None:
    ours = profiler(tmp_path)
    assert ours.start() == ""
    assert "already" in ours.start()
    torch.ones(4).cumsum(0)
    ours.step()
    assert ours.stop() == ""
    torch.ones(4).cumprod(0)
    assert "/start_profile" in ours.stop()
    [path] = tmp_path.iterdir()
    assert path.name.startswith("worker-1.") and path.name.endswith(".pt.trace.json.gz")
    assert "aten::cumsum" in operators(path) and "aten::cumprod" not in operators(path)


def test_a_profile_ends_by_itself_and_another_may_begin(tmp_path: Path) -> None:
    ours = profiler(tmp_path, max_iterations=2, torch_profiler_use_gzip=False)
    for count in (1, 2):
        assert ours.start() == ""
        ours.step()
        assert len(list(tmp_path.iterdir())) == count - 1
        ours.step()
        ours.step()
        assert len(list(tmp_path.iterdir())) == count
        assert "/start_profile" in ours.stop()


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    off = Profiler(None, "worker-1")
    assert off.start() == off.stop() == OFF and "--profiler-config" in OFF
    off.step()
    (tmp_path / "file").write_text("")
    blocked = profiler(tmp_path / "file")
    assert blocked.start() == "" and "cannot be written" in blocked.stop()
    if not torch.cuda.is_available():
        assert "needs a GPU" in Profiler(ProfilerConfig("cuda"), "worker-1").start()
