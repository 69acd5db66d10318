"""NIXL over the memory of GPUs, as we call it: a stand-in of an agent copies between addresses.
Buffers of the host are tested with the package, in `test_nixl`."""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any, ClassVar

import msgspec
import pytest
import torch

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer import nixl
from baton_worker.kv_transfer.nixl_buffers import Terms
from baton_worker.kv_transfer.nixl_gpu import NixlGpu
from baton_worker.kv_transfer.transport import Size, TransportError, UnusableError

SIZE = Size(4, 64)
Regions = list[tuple[int, ...]]


class Agent:
    """Of `nixl_agent` what is called; reads what another agent has registered, at once."""

    registered: ClassVar[dict[int, tuple[int, int, str]]] = {}
    """Bytes, GPU and kind of memory by address, of all agents."""

    def __init__(self, number: int) -> None:
        self.name = f"agent-{number}"

    def register_memory(self, regions: list[tuple[int, int, int, str]], kind: str) -> int:
        ((address, size, device, _),) = regions
        self.registered[address] = (size, device, kind)
        return address

    def deregister_memory(self, address: int) -> None:
        del self.registered[address]

    def get_agent_metadata(self) -> bytes:
        return self.name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        return metadata.decode()

    def remove_remote_agent(self, name: str) -> None:
        pass

    def get_xfer_descs(self, regions: Regions, kind: str) -> Regions:
        ((address, size, device),) = regions
        found = [
            (number, name)
            for start, (buffer, number, name) in self.registered.items()
            if start <= address and address + size <= start + buffer
        ]
        assert found == [(device, kind)], "it is not registered"
        return regions

    def initialize_xfer(self, kind: str, here: Regions, there: Regions, agent: str) -> Any:
        assert kind == "READ" and agent == "agent-0"
        return here[0], there[0]

    def transfer(self, handle: Any) -> str:
        (to, size, _), (source, _, _) = handle
        ctypes.memmove(to, source, size)
        return "DONE"

    def release_xfer_handle(self, handle: Any) -> None:
        pass

    def get_new_notifs(self) -> None:
        pass


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Agents are stand-ins; the list gets UCX's transports of each."""
    numbers, told = count(), list[str]()

    def agent(anywhere: bool, local_transports: str) -> Agent:
        told.append(local_transports)
        return Agent(next(numbers))

    monkeypatch.setattr(nixl, "_agent", agent)
    monkeypatch.setattr(nixl.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(Agent, "registered", {})
    return told


def test_blocks_pass_between_registered_memory_of_gpus(local: list[str]) -> None:
    """The stand-in's GPUs are memory of the host."""
    here = torch.device("cpu", 0)
    source, target = NixlGpu(Config(role="prefill"), here), NixlGpu(Config(), here)
    sender = source.send(SIZE)
    told = msgspec.msgpack.decode(sender.terms, type=Terms)
    assert Agent.registered == {told.address: (SIZE.total, 0, "VRAM")}
    buffer = sender.view(2, 5)
    assert isinstance(buffer, torch.Tensor) and source.on_device
    buffer.copy_(torch.arange(5))
    receiver = target.receive(sender.terms, SIZE)
    assert {kind for *_, kind in Agent.registered.values()} == {"VRAM"}
    taken = receiver.take(Block(1, 0, 0, "uint8", 0, b"", 5), 2)
    assert isinstance(taken, torch.Tensor) and taken.tolist() == [0, 1, 2, 3, 4]
    told.device = 3
    stranger = target.receive(msgspec.msgpack.encode(told), SIZE)
    with pytest.raises(TransportError, match="not registered"):
        stranger.take(Block(1, 0, 0, "uint8", 0, b"", 5), 2)
    for end in (sender, receiver, stranger):
        end.close()
    assert not Agent.registered and local == ["self,sm,cuda_copy,cuda_ipc"] * 2


def test_it_needs_a_gpu_that_ucx_knows(local: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableError, match="this worker has no GPU"):
        NixlGpu(Config(device="cpu"))

    def fails(self: Agent, regions: object, kind: str) -> None:
        raise ValueError(f"no memory of kind {kind}")

    monkeypatch.setattr(Agent, "register_memory", fails)
    with pytest.raises(UnusableError, match="no memory of kind VRAM"):
        NixlGpu(Config(), torch.device("cpu")).send(SIZE)
