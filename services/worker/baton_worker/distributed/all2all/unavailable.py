"""Libraries that pass tokens between GPUs: known by name, so that a refusal can say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from baton.errors import SettingsError
from baton_worker.distributed.communicator import Communicator


@dataclass(frozen=True, slots=True)
class UnavailableAllToAll:
    """A library that moves tokens between GPUs, and that nothing here calls."""

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
