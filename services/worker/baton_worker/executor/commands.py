"""What a leader tells its followers: frames on a pipe, MessagePack, nothing that can run code."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO, TypeAlias

import msgspec
import torch
from torch import Tensor

from baton.protocol import Grant, Pull, Revoke
from baton_worker.attention import AttentionBatch

_LENGTH = struct.Struct("<Q")


class Begin(msgspec.Struct, tag="begin", array_like=True, frozen=True):
    """The first order: who you are, and what to load."""

    rank: int
    size: int
    meeting: str
    """Path of `group.join`."""
    settings: dict[str, Any]
    """Those of the worker that do not have their default."""
    reports: int = -1
    """Descriptor that takes its reports."""


class Forward(msgspec.Struct, tag="forward", array_like=True, frozen=True):
    """Run one ragged step; see `models.decoder.Model.forward`."""

    tokens: Tensor
    positions: Tensor
    batch: AttentionBatch
    whole: bool
    """The rows are whole texts in which every token sees every other."""


class Logits(msgspec.Struct, tag="logits", array_like=True, frozen=True):
    """Compute the logits of hidden states, which are broadcast next."""

    shape: tuple[int, int]


class Copy(msgspec.Struct, tag="copy", array_like=True, frozen=True):
    """Copy pages; see `kv.KVCache.copy`."""

    sources: list[int]
    targets: list[int]


class Clear(msgspec.Struct, tag="clear", array_like=True, frozen=True):
    """Clear a page; see `kv.KVCache.clear`."""

    page: int
    first: int
    group: int = 0


class Store(msgspec.Struct, tag="store", array_like=True, frozen=True):
    """Copy pages to the host; see `kv.host.HostPages.store`."""

    pages: list[int]
    host: list[int]


class Load(msgspec.Struct, tag="load", array_like=True, frozen=True):
    """Copy pages back; see `kv.host.HostPages.load`."""

    host: list[int]
    pages: list[int]


class Take(msgspec.Struct, tag="take", array_like=True, frozen=True):
    """Serve or pull keys; see `kv.transfer.KVTransferManager.take`."""

    message: Grant | Revoke | Pull


class Forget(msgspec.Struct, tag="forget", array_like=True, frozen=True):
    """Forget all transfers; see `kv.transfer.KVTransferManager.reset`."""


class End(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """There is nothing more to do with this model."""


Order: TypeAlias = Begin | Forward | Logits | Copy | Clear | Store | Load | Take | Forget | End


class Pipe:
    """Orders to several followers: one pipe each."""

    def __init__(self, files: list[BinaryIO]) -> None:
        self._files = files
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)

    def send(self, order: Order) -> None:
        """Send one order to all of them.

        Raises:
            OSError: a follower is gone.
        """
        data = self._encoder.encode(order)
        for file in self._files:
            file.write(_LENGTH.pack(len(data)) + data)
            file.flush()


class Reader:
    """Orders from the leader; tensors are put on `device`."""

    def __init__(self, file: BinaryIO, device: torch.device | None = None) -> None:
        self._file = file
        self.device = device or torch.device("cpu")
        self._decoder = msgspec.msgpack.Decoder(Order, dec_hook=self._typed)

    def next(self) -> Order:
        """Wait for the next order; `End` when the leader has closed the pipe."""
        head = self._file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return End()
        order: Order = self._decoder.decode(self._file.read(*_LENGTH.unpack(head)))
        return order

    def _typed(self, kind: type, value: Any) -> Any:
        assert kind is Tensor, f"orders carry no {kind}"
        dtype, shape, data = value
        numbers = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
        return numbers.view(shape).to(self.device)


def _plain(value: Any) -> Any:
    """A tensor as its dtype, shape and bytes."""
    assert isinstance(value, Tensor), f"orders carry no {type(value)}"
    data = value.cpu().contiguous()
    dtype = str(data.dtype).removeprefix("torch.")
    return dtype, tuple(data.shape), data.view(torch.uint8).numpy().tobytes()
