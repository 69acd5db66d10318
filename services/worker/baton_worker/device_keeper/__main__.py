"""Hold memory of a GPU for its workers: `baton device-keeper`, which `baton serve` starts."""

from __future__ import annotations

from baton.process.lifecycle import Lifecycle, main
from baton.settings import Settings, setting
from baton_worker.device_keeper.driver import CudaDriver
from baton_worker.device_keeper.keeper import DeviceKeeper, keep


class Config(Settings, prefix="device-keeper"):
    """Hold the weights and KV pages of the workers of one GPU in a process that outlives them."""

    gpu: int = setting(0, "parallelism", ge=0)
    """Number of the GPU, among those that CUDA_VISIBLE_DEVICES leaves visible."""


def serve(config: Config, life: Lifecycle) -> int:
    """Serve until the process should end. Returns the exit code."""
    keep(DeviceKeeper(config.run_dir, config.gpu, CudaDriver(config.gpu)), life)
    return 0


if __name__ == "__main__":
    main("device-keeper", Config, serve)
