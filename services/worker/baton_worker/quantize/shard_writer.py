"""Safetensors files of bounded size, and the index that lists them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

_INDEX = "model.safetensors.index.json"


class ShardWriter:
    """Collects tensors and writes a file whenever the next one would make it too large.

    Args:
        most_bytes: bytes of tensors in a file; a larger tensor has a file of its own.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._waiting = dict[str, Tensor]()
        self._bytes = 0
        self._files = list[Path]()
        self._weight_map = dict[str, int]()
        self.total = 0
        """Bytes of all tensors so far."""

    def add(self, folder: Path, name: str, tensor: Tensor) -> None:
        """Take a tensor, and first write the file that it would not fit into."""
        if self._waiting and self._bytes + tensor.nbytes > self._most:
            self._write(folder)
        self._waiting[name] = tensor.contiguous()
        self._weight_map[name] = len(self._files)
        self._bytes += tensor.nbytes
        self.total += tensor.nbytes

    def end(self, folder: Path) -> int:
        """Write the rest, name the files by their number and list them; returns how many."""
        if self._waiting:
            self._write(folder)
        count = len(self._files)
        for number, path in enumerate(self._files):
            path.rename(folder / _name(number, count))
        index = {
            "metadata": {"total_size": self.total},
            "weight_map": {name: _name(at, count) for name, at in self._weight_map.items()},
        }
        (folder / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        return count

    def _write(self, folder: Path) -> None:
        path = folder / f"part-{len(self._files):05}.safetensors"
        save_file(self._waiting, path, metadata={"format": "pt"})
        self._files.append(path)
        self._waiting, self._bytes = {}, 0


def _name(number: int, count: int) -> str:
    return f"model-{number + 1:05}-of-{count:05}.safetensors"
