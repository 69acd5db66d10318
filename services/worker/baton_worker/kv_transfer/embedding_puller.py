"""Target side of embeddings: from encode workers to this worker's encoder cache."""

from __future__ import annotations

import torch
from msgspec.structs import replace
from torch import Tensor

from baton.net.curve import CurveKeys
from baton.protocol import Pull, Pulled
from baton_worker.kv_transfer.embedding_content import EmbeddingContent
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.transport import Transport


class EmbeddingPuller:
    """Life cycle: `take` per pull, poll `finished`, `reset` for a new scheduler, `close`.

    Args:
        width: numbers of one embedding.
        dtype: that of the model.
        transports: by name, in order of preference.
        host: see `manager.host`.
    """

    def __init__(
        self,
        width: int,
        dtype: torch.dtype,
        name: str,
        transports: dict[str, Transport],
        host: str,
        keys: CurveKeys | None = None,
    ) -> None:
        self._content = EmbeddingContent(width, dtype)
        self._importer = Importer(self._content, f"{name}/media", transports, host, keys)
        self._digests: dict[int, bytes] = {}
        self.layout = self._content.layout

    @property
    def busy(self) -> bool:
        """Whether embeddings are being pulled."""
        return self._importer.busy

    def take(self, pull: Pull) -> None:
        """Start a pull in the background."""
        self._digests[pull.id] = pull.digest
        self._importer.start(pull)

    def finished(self) -> list[tuple[Pulled, Tensor]]:
        """Pulls that have ended since the last call, with their embeddings [n, width]; those of a
        pull that failed are of no use."""
        nothing = torch.empty(0)
        results = []
        for pulled in self._importer.finished():
            embeddings = self._content.take(pulled.id)
            reported = replace(pulled, digest=self._digests.pop(pulled.id))
            results.append((reported, nothing if embeddings is None else embeddings))
        return results

    def reset(self) -> None:
        """Forget all pulls."""
        self._importer.reset()
        self._content.clear()
        self._digests.clear()

    def close(self) -> None:
        """End all pulls and connections."""
        self._importer.close()
