"""Tensor-parallel training checkpoints: one file per rank, each with its shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.errors import ModelError
from baton_worker.spec import Decoder
from baton_worker.spec.hf_config import read_config, read_eos_token_ids
from baton_worker.spec.names import Names

_SPLIT_BY_INPUT = ("output", "down")
"""Roles sharded by columns; other matrices are sharded by rows (Megatron-LM, arXiv:1909.08053),
vectors are replicated."""


class RankShardedFolder:
    """`model.0.safetensors`, `model.1.safetensors` and so on: fairseq2's sharded files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = read_config(folder)
        self.eos_token_ids = read_eos_token_ids(folder, self.config)

    @staticmethod
    def fits(folder: Path) -> bool:
        """Whether the folder has this format."""
        return (folder / "model.0.safetensors").is_file()

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        """Every tensor, its shards concatenated.

        Raises:
            ModelError: a file cannot be read, or the files hold different tensors.
        """
        names, layers = Names(spec.tensors.names), range(len(spec.layers))
        columns = {names.at(layer)(role) for layer in layers for role in _SPLIT_BY_INPUT}
        files = self._files()
        try:
            with ExitStack() as stack:
                ranks = [stack.enter_context(safe_open(f, framework="pt")) for f in files]
                for name in ranks[0].keys():  # noqa: SIM118 - the handle is not iterable
                    shares = [rank.get_tensor(name) for rank in ranks]
                    yield name, _joined(shares, name.rpartition(".")[0] in columns)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{self._folder} cannot be read: {error}.") from error

    def _files(self) -> list[Path]:
        count = len(list(self._folder.glob("model.*.safetensors")))
        return [self._folder / f"model.{rank}.safetensors" for rank in range(count)]


def _joined(shares: list[Tensor], by_columns: bool) -> Tensor:
    if shares[0].ndim == 1:
        return shares[0]
    return torch.cat(shares, dim=1 if by_columns else 0)
