"""Folder of one model for weights that came from memory, and for the version in use.

What a worker has received it must find again after a restart, when the sender's memory is gone. So
it is written to files named after their contents, which all workers of a host share.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import msgspec
from safetensors.torch import save_file
from torch import Tensor

from baton.logs import logger
from baton.protocol import RECEIVED_WEIGHTS, WeightSource, WeightVersion
from baton_worker.weight_transfer.contents import file_digest

log = logger(__name__)
_VERSION = "version.json"


class WeightSpool:
    """The folder of one model below a run directory."""

    def __init__(self, run_dir: Path, model: str) -> None:
        self._folder = (
            run_dir.absolute() / RECEIVED_WEIGHTS / sha256(model.encode()).hexdigest()[:16]
        )

    def store(self, tensors: dict[str, Tensor]) -> WeightSource:
        """Write tensors to a file, unless it is there."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self._folder / f".{uuid4().hex}"
        save_file(tensors, written)
        digest = file_digest(written)
        path = self._folder / f"{digest.hex()}.safetensors"
        os.replace(written, path)
        return WeightSource(str(path), digest, whole=False)

    def version(self) -> WeightVersion | None:
        """The version that the workers of this host use; None if they use what they start with."""
        try:
            return msgspec.json.decode((self._folder / _VERSION).read_bytes(), type=WeightVersion)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the version of the weights cannot be read: %s", error)
            return None

    def use(self, version: WeightVersion) -> None:
        """A worker uses a version: the next one starts with it. Files of others are removed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self._folder / f".{uuid4().hex}"
        written.write_bytes(msgspec.json.encode(version))
        os.replace(written, self._folder / _VERSION)
        used = {source.path for source in version.sources}
        for path in self._folder.glob("*.safetensors"):
            if str(path) not in used:
                path.unlink(missing_ok=True)
