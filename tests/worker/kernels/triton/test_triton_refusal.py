"""A GPU without a compiler is refused by name, once; where what is compiled is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.kernels import triton as kernels

CUDA = torch.device("cuda", 5)


def test_a_trial_launch_that_fails_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("Traceback ...\nFailed to find C compiler.")

    monkeypatch.setattr("torch.ones", broken)
    reason = str(kernels.refuses(CUDA))
    assert "(Failed to find C compiler.)" in reason and "Python.h" in reason
    monkeypatch.undo()
    assert kernels.refuses(CUDA) == reason, "it is not tried again"
    kernels._trial.cache_clear()


def test_what_is_compiled_has_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert kernels.cache_dir() == tmp_path
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert kernels.cache_dir() is None
