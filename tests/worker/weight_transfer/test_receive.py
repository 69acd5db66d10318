"""Weights from files and from shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from baton.errors import ModelError
from baton.protocol import BroadcastTransfer, FileTransfer, SharedMemoryTransfer, TensorInfo
from baton_ops.bench.server import free_port
from baton_worker.weight_transfer.broadcast import BroadcastGroup, Membership
from baton_worker.weight_transfer.receive import receive
from baton_worker.weight_transfer.spool import WeightSpool

pytestmark = pytest.mark.row("F14.14")
TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).view(2, 3),
    "b": torch.arange(4, dtype=torch.float32),
}


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    data = b"".join(t.view(torch.uint8).numpy().tobytes() for t in TENSORS.values())
    made = SharedMemory(create=True, size=len(data))
    made.buf[: len(data)] = data
    yield made
    made.close()
    made.unlink()


def test_tensors_come_out_of_shared_memory_as_they_went_in(
    memory: SharedMemory, tmp_path: Path
) -> None:
    infos = tuple(
        TensorInfo(name, str(t.dtype).removeprefix("torch."), tuple(t.shape))
        for name, t in TENSORS.items()
    )
    digits = sha256(bytes(memory.buf[:28])).hexdigest()
    member = Membership()
    spool, transfer = WeightSpool(tmp_path, "m"), SharedMemoryTransfer(memory.name, infos, digits)
    source = receive(transfer, spool, member)
    found = load_file(source.path)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert receive(FileTransfer(source.path), spool, member) == source
    for change, why in (
        ({"sha256": "0" * 64}, digits),
        ({"name": "nobody-has-made-it"}, "no shared memory"),
        ({"tensors": (structs.replace(infos[0], shape=(9, 9999)),)}, "the tensors take"),
        ({"tensors": (structs.replace(infos[0], dtype="int4"),)}, "is int4"),
        ({"tensors": (structs.replace(infos[0], shape=(0, 3)),)}, "holds no numbers"),
    ):
        with pytest.raises(ModelError, match=why):
            receive(structs.replace(transfer, **change), spool, member)
    with pytest.raises(ModelError, match="no slashes"):
        receive(structs.replace(transfer, name="../../etc/passwd"), spool, member)


def test_tensors_come_out_of_a_broadcast_as_they_went_in(tmp_path: Path) -> None:
    infos = tuple(
        TensorInfo(name, str(t.dtype).removeprefix("torch."), tuple(t.shape))
        for name, t in TENSORS.items()
    )
    data = b"".join(t.view(torch.uint8).numpy().tobytes() for t in TENSORS.values())
    transfer = BroadcastTransfer(infos, sha256(data).hexdigest())
    member, spool, port = Membership(), WeightSpool(tmp_path, "m"), free_port()
    with pytest.raises(ModelError, match="init_weight_transfer_engine"):
        receive(transfer, spool, member)
    with ThreadPoolExecutor(1) as trainer:
        led = trainer.submit(BroadcastGroup, "127.0.0.1", port, 0, 2)
        member.join("127.0.0.1", port, 1, 2)
        group = led.result()
        sent = trainer.submit(group.send, TENSORS.values())
        source = receive(transfer, spool, member)
        sent.result()
        found = load_file(source.path)
        assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
        sent = trainer.submit(group.send, TENSORS.values())
        with pytest.raises(ModelError, match="What was broadcast has SHA-256"):
            receive(structs.replace(transfer, sha256="0" * 64), spool, member)
        sent.result()
    with pytest.raises(ModelError, match="is int4"):
        wrong = (structs.replace(infos[0], dtype="int4"),)
        receive(structs.replace(transfer, tensors=wrong), spool, member)
