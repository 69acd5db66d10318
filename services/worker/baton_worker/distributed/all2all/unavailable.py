"""All-to-all libraries that are not supported; each name has an error with an alternative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from baton.errors import SettingsError
from baton_worker.distributed.communicator import Communicator


@dataclass(frozen=True, slots=True)
class UnavailableAllToAll:
    """An all-to-all library that is not supported."""

    name: str
    library: str

    def __call__(self, ranks: Communicator) -> NoReturn:
        """Refuse.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(
            f"--all2all-backend {self.name}: this needs {self.library}, which Baton does not call. "
            "Use allgather_reducescatter or naive."
        )


pplx = UnavailableAllToAll("pplx", "Perplexity's kernels over NVSHMEM")
deepep_high_throughput = UnavailableAllToAll(
    "deepep_high_throughput", "DeepEP over NVLink and RDMA"
)
deepep_low_latency = UnavailableAllToAll("deepep_low_latency", "DeepEP over RDMA")
mori = UnavailableAllToAll("mori", "MoRI between AMD GPUs")
flashinfer_all2allv = UnavailableAllToAll(
    "flashinfer_all2allv", "FlashInfer over multi-node NVLink"
)
