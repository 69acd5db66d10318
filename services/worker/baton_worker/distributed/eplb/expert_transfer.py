"""Transfers of an expert's weights between ranks, in the layout of their kernel."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from baton_worker.distributed.communicator import Communicator
from baton_worker.kernels.cpu.huge_pages import zeros
from baton_worker.kernels.movable import Tensors


class _Header(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that follows."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def send(ranks: Communicator, tensors: Tensors, to: int) -> None:
    """Send the weights of an expert to a rank that calls `receive`: a header and then each tensor
    unchanged. Sizes may differ among experts, as compressed weights do."""
    device = next(iter(tensors.values())).device
    headers = [_Header(n, str(t.dtype).split(".")[1], (*t.shape,)) for n, t in tensors.items()]
    encoded = torch.frombuffer(bytearray(msgspec.msgpack.encode(headers)), dtype=torch.uint8)
    ranks.send(torch.tensor([len(encoded)], device=device), to)
    ranks.send(encoded.to(device), to)
    for tensor in tensors.values():
        if tensor.numel():
            ranks.send(_bytes(tensor.contiguous()), to)


def receive(ranks: Communicator, source: int, device: torch.device) -> dict[str, Tensor]:
    """Receive what `send` sends, into new memory, in huge pages on a CPU."""
    size = torch.empty(1, dtype=torch.int64, device=device)
    ranks.receive(size, source)
    encoded = torch.empty(int(size), dtype=torch.uint8, device=device)
    ranks.receive(encoded, source)
    headers = msgspec.msgpack.decode(encoded.cpu().numpy().tobytes(), type=list[_Header])
    tensors = dict[str, Tensor]()
    for header in headers:
        dtype: torch.dtype = getattr(torch, header.dtype)
        tensors[header.name] = into = zeros(header.shape, dtype=dtype, device=device)
        if into.numel():
            ranks.receive(_bytes(into), source)
    return tensors


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor, uint8 [n]."""
    return tensor.view(-1).view(torch.uint8)
