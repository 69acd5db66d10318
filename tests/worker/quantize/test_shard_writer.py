"""Files of bounded size."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from baton_worker.quantize.shard_writer import ShardWriter


def test_a_file_is_written_before_it_grows_too_large(tmp_path: Path) -> None:
    writer = ShardWriter(40)
    given = {name: torch.arange(count) for name, count in (("a", 3), ("b", 2), ("c", 9), ("d", 1))}
    for name, tensor in given.items():
        writer.add(tmp_path, name, tensor)
    assert writer.end(tmp_path) == 3 and writer.total == 15 * 8
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == writer.total
    assert [*index["weight_map"]] == ["a", "b", "c", "d"]
    assert index["weight_map"]["d"] == "model-00003-of-00003.safetensors"
    for name, tensor in given.items():
        assert torch.equal(load_file(tmp_path / index["weight_map"][name])[name], tensor)
    assert len([*tmp_path.iterdir()]) == 4
