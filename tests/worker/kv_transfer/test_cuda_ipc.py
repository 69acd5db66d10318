"""GPU memory that two workers share: their transfer threads over device doubles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton.protocol import Grant, Pull
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_transfer.cuda_ipc import CudaIpc
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.kv_transfer.tcp import Tcp
from baton_worker.kv_transfer.transport import Size, Transport, TransportError, UnusableError
from tests.fakes.device_double import DeviceTensor, Double
from tests.fakes.page_caches import LENGTH, TOKEN, filled, on_double

PAGES = pack(range(8), "I")
GRANT = Grant(1, 9, TOKEN, PAGES, LENGTH)


class SharedDoubleMemory:
    """Memory of doubles by name; a handle that is not of this host opens nothing."""

    def __init__(self, named: dict[bytes, Tensor]) -> None:
        self._named = named

    def allocate(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8)

    def export(self, memory: Tensor) -> bytes:
        handle = b"%d" % len(self._named)
        self._named[handle] = memory
        return handle

    def open(self, handle: bytes) -> Tensor:
        if handle not in self._named:
            raise TransportError("GPU 7 of the source is not visible to this worker")
        return self._named[handle]


class OnDouble(SharedDoubleMemory):
    """Of one double, from any thread."""

    def __init__(self, named: dict[bytes, Tensor], double: Double) -> None:
        super().__init__(named)
        self._double = double

    def allocate(self, size: int) -> Tensor:
        return DeviceTensor(super().allocate(size), self._double)


class OnTarget(SharedDoubleMemory):
    """What another double has allocated, on this one."""

    def __init__(self, named: dict[bytes, Tensor], double: Double) -> None:
        super().__init__(named)
        self._double = double

    def open(self, handle: bytes) -> Tensor:
        memory: Any = super().open(handle)
        return DeviceTensor(memory.on_host, self._double)


@pytest.mark.row("F15.01")
def test_workers_share_gpu_memory_or_take_the_next_transport(run_dir: Any) -> None:
    """With connections and threads of their own; a GPU that the target does not see is no failure
    of the pull."""
    with pytest.raises(UnusableError, match="no GPU"):
        CudaIpc(Config(device="cpu"))
    expected, config = filled(8), Config(run_dir=run_dir)
    for seen in (True, False):
        source, target, named = Double(), Double(), dict[bytes, Tensor]()
        there, here = on_double(Layout.NHD, source, expected), on_double(Layout.NHD, target, None)
        own: dict[str, Transport] = {"cuda_ipc": CudaIpc(config, OnDouble(named, source))}
        opened = OnTarget(named if seen else {}, target)
        theirs: dict[str, Transport] = {"cuda_ipc": CudaIpc(config, opened)}
        address = f"ipc://{run_dir}/gpu-{seen}.sock"
        exporter = Exporter(PageContent(there, source), address, own | {"tcp": Tcp(config)}, "h")
        importer = Importer(PageContent(here, target), "target", theirs | {"tcp": Tcp(config)}, "h")
        exporter.start()
        try:
            exporter.grant(GRANT)
            importer.start(Pull(5, GRANT.id, address, TOKEN, 0, LENGTH, PAGES, GRANT.epoch))
            while not (done := importer.finished()):
                pass
        finally:
            importer.close()
            exporter.stop()
        assert (done[0].reason, done[0].transport) == ("", "cuda_ipc" if seen else "tcp")
        assert not source.blocking and not target.blocking
        assert bool(source.counts["download"]) is not seen
        for mine, wanted in zip(here.layers, expected.layers, strict=True):
            held: Any = mine
            assert torch.equal(held.on_host.flatten(0, 1)[:LENGTH], wanted.flatten(0, 1)[:LENGTH])
    wrong = Size(1, 8)
    with pytest.raises(TransportError, match="cannot be opened"):
        CudaIpc(config, OnDouble(named, source)).receive(next(iter(named)), wrong)
