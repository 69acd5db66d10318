"""A checkpoint with some of its tensors replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError

from baton.errors import ModelError
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.formats.mmap import opened
from baton_worker.checkpoint.unstack import Stored
from baton_worker.quantization.methods import method
from baton_worker.spec import Decoder

_LISTED = 3


class PatchedCheckpoint:
    """A checkpoint of floats in which tensors of safetensors files take the place of its own.

    Raises:
        ModelError: its weights are quantised, or a file cannot be read.
    """

    def __init__(self, base: Checkpoint, files: Sequence[Path]) -> None:
        """`files`: a later one counts where two have the same tensor."""
        if (named := method(base.config)) is not None:
            raise ModelError(
                f"The weights of this model are stored as {named}: tensors alone cannot replace "
                "some of them. Send a whole checkpoint."
            )
        self._base = base
        self.config, self.eos_token_ids = base.config, base.eos_token_ids
        self._file_of: dict[str, Path] = {}
        for path in files:
            self._file_of |= dict.fromkeys(tensor_names(path), path)

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Stored]]:
        """Every tensor once; the replaced ones come first.

        Raises:
            ModelError: a file has a tensor that the checkpoint has not.
        """
        for path in dict.fromkeys(self._file_of.values()):
            with opened(path) as file:
                for name in [n for n, owner in self._file_of.items() if owner == path]:
                    yield name, file.get_tensor(name)
        strange = set(self._file_of)
        for name, stored in self._base.tensors(spec):
            if name not in self._file_of:
                yield name, stored
            strange.discard(name)
        if strange:
            some = ", ".join(sorted(strange)[:_LISTED])
            raise ModelError(
                f"The new weights have tensors that the checkpoint has not: {some}. Send tensors "
                "under the names that the checkpoint has."
            )


def tensor_names(path: Path) -> list[str]:
    """Names of the tensors of a safetensors file. Raises `ModelError`."""
    try:
        with opened(path) as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error
