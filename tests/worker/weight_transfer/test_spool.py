"""Received weights, and the version in use, outlive a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from baton.protocol import RECEIVED_WEIGHTS, WeightVersion
from baton_worker.weight_transfer.spool import WeightSpool

pytestmark = pytest.mark.row("F14.14")


def test_files_are_named_after_their_contents_and_go_with_their_version(tmp_path: Path) -> None:
    spool, same, other = (WeightSpool(tmp_path, name) for name in ("m", "m", "other/../m"))
    assert spool.version() is None
    one = spool.store({"a": torch.ones(2, 2, dtype=torch.bfloat16)})
    assert same.store({"a": torch.ones(2, 2, dtype=torch.bfloat16)}) == one and not one.whole
    two = spool.store({"a": torch.zeros(2, 2)})
    assert load_file(one.path)["a"].dtype is torch.bfloat16 and one != two
    version = WeightVersion(1, "v1", b"1" * 16, (two,))
    spool.use(version)
    assert same.version() == version and other.version() is None
    assert Path(two.path).is_file() and not Path(one.path).exists()
    (folder,) = (tmp_path / RECEIVED_WEIGHTS).iterdir()
    (folder / "version.json").write_text("{")
    assert spool.version() is None
