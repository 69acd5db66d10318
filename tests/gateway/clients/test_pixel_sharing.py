"""Whether pixels are in shared memory follows from the settings and from where the scheduler is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton_gateway.clients.pixel_sharing import PixelSharing
from baton_gateway.config import Config


def test_only_what_workers_can_reach_is_shared(run_dir: Path) -> None:
    near, far = f"ipc://{run_dir}/scheduler", "tcp://10.0.0.1:5555"
    (run_dir / "scheduler").touch()

    def is_shared(address: str, **settings: Any) -> bool:
        directory: Any = SimpleNamespace(first=lambda link: address)
        sharing = PixelSharing(Config(run_dir=run_dir, **settings), directory)
        try:
            sharing.serve()
            store = sharing.store()
            assert store is sharing.store(), "there is one store"
            return store is not None
        finally:
            sharing.close()

    assert is_shared(near) and not is_shared(far)
    assert not is_shared(near, mm_tensor_ipc="direct_rpc")
    assert is_shared(far, mm_tensor_ipc="shm")
    assert is_shared(far, bind_pixels="tcp://127.0.0.1:*", trusted_network=True)
