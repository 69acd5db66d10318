"""Commands from a leader to its followers: MessagePack frames on a pipe; no code is decoded."""

from __future__ import annotations

from threading import Lock
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.net import frames
from baton.protocol import Grant, Pull, Revoke
from baton_worker.attention import AttentionBatch
from baton_worker.layers.media_embeddings import MediaEmbeddings


class Begin(msgspec.Struct, tag="begin", array_like=True, frozen=True):
    """First command: identity and configuration of the follower."""

    rank: int
    size: int
    meeting: str
    """Path for `process_groups.join`."""
    settings: dict[str, Any]
    """Worker settings that differ from their defaults."""
    reports: int = -1
    """Descriptor to write reports to."""
    patches: list[str] = []
    """Files with tensors that replace some of the model's."""


class Forward(msgspec.Struct, tag="forward", array_like=True, frozen=True):
    """Run one ragged step; see `models.decoder.Model.forward`."""

    tokens: Tensor
    positions: Tensor
    batch: AttentionBatch
    whole: bool
    """Whether rows are whole texts with bidirectional attention."""
    media: MediaEmbeddings | None = None
    adapters: Tensor | None = None
    """int64 [T]: the number of each token's adapter, -1 for none, where adapters are served."""


class Step(msgspec.Struct, tag="step", array_like=True, frozen=True):
    """Run one ragged step of the tokens that are broadcast next, int64 [T]. Its indices are those
    that the leader's host has made: they come from no device."""

    query_lens: tuple[int, ...]
    num_computed: tuple[int, ...]
    page_size: int
    groups: int
    arrays: dict[str, npt.NDArray[Any]]
    """"positions" and `AttentionBatch.array_names`."""
    adapters: npt.NDArray[Any] | None = None
    """int64 [T], as in `Forward`."""


class Capture(msgspec.Struct, tag="capture", array_like=True, frozen=True):
    """Capture steps: every rank does it at the same time, and all use them or none."""


class Logits(msgspec.Struct, tag="logits", array_like=True, frozen=True):
    """Compute logits of the hidden states that are broadcast next."""

    shape: tuple[int, int]
    adapters: Tensor | None = None
    """As in `Forward`, of the rows."""


class PutAdapter(msgspec.Struct, tag="put_adapter", array_like=True, frozen=True):
    """Put an adapter into a slot; see `lora.targets.LoraTargets.put`."""

    slot: int
    pairs: list[tuple[str, Tensor, Tensor, float, Tensor | None]]
    """Of each module its A, its B, the scale and the magnitudes, as in `kernels.lora.LoraPair`:
    whole."""


class Copy(msgspec.Struct, tag="copy", array_like=True, frozen=True):
    """Copy pages; see `kv_cache.cache.KVCache.copy`."""

    sources: list[int]
    targets: list[int]


class Clear(msgspec.Struct, tag="clear", array_like=True, frozen=True):
    """Clear a page; see `kv_cache.cache.KVCache.clear`."""

    page: int
    first: int
    group: int = 0


class Zero(msgspec.Struct, tag="zero", array_like=True, frozen=True):
    """Fill all pages with zeros; see `kv_cache.cache.KVCache.zero`."""


class Store(msgspec.Struct, tag="store", array_like=True, frozen=True):
    """Swap pages out to the host; see `kv_cache.host_pages.HostPages.store`."""

    pages: list[int]
    host: list[int]


class Load(msgspec.Struct, tag="load", array_like=True, frozen=True):
    """Swap pages in; see `kv_cache.host_pages.HostPages.load`."""

    host: list[int]
    pages: list[int]


class Take(msgspec.Struct, tag="take", array_like=True, frozen=True):
    """Serve or pull KV; see `kv_transfer.manager.KVTransferManager.take`."""

    message: Grant | Revoke | Pull


class Forget(msgspec.Struct, tag="forget", array_like=True, frozen=True):
    """Forget all transfers; see `kv_transfer.manager.KVTransferManager.reset`."""


class LoadShard(msgspec.Struct, tag="load_shard", array_like=True, frozen=True):
    """Load other weights beside those in use, while commands go on."""

    path: str
    """Checkpoint."""
    patches: list[str]
    """Files with tensors that replace some of its own."""


class BeginTrial(msgspec.Struct, tag="begin_trial", array_like=True, frozen=True):
    """Wait for `LoadShard`, agree with all ranks that it has succeeded on each, and if so run what
    follows on the loaded weights, with pages of their own."""


class EndTrial(msgspec.Struct, tag="end_trial", array_like=True, frozen=True):
    """Run what follows on the weights in use again."""


class SwitchShard(msgspec.Struct, tag="switch_shard", array_like=True, frozen=True):
    """Use the loaded weights from now on."""


class DropShard(msgspec.Struct, tag="drop_shard", array_like=True, frozen=True):
    """Forget the loaded weights."""


class End(msgspec.Struct, tag="end", array_like=True, frozen=True):
    """Shut down the follower's model."""


Command: TypeAlias = (
    Begin
    | Forward
    | Step
    | Capture
    | Logits
    | PutAdapter
    | Copy
    | Clear
    | Zero
    | Store
    | Load
    | Take
    | Forget
    | LoadShard
    | BeginTrial
    | EndTrial
    | SwitchShard
    | DropShard
    | End
)


class Pipe:
    """Sends commands to several followers, one pipe each. Any thread may send."""

    def __init__(self, files: list[BinaryIO]) -> None:
        self._files, self._lock = files, Lock()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)

    def send(self, command: Command, to: slice = slice(None)) -> None:
        """Send one command to followers, by default to all.

        Raises:
            OSError: a follower has exited.
        """
        with self._lock:
            data = self._encoder.encode(command)
            for file in self._files[to]:
                frames.send(file, data)


class Reader:
    """Reads commands of the leader; tensors are put on `device`."""

    def __init__(self, file: BinaryIO, device: torch.device | None = None) -> None:
        self._file = file
        self.device = device or torch.device("cpu")
        self._decoder = msgspec.msgpack.Decoder(Command, dec_hook=self._typed)

    def next(self) -> Command:
        """Wait for the next command; `End` if the leader has closed the pipe or exited."""
        data = frames.receive(self._file)
        if data is None:
            return End()
        command: Command = self._decoder.decode(data)
        return command

    def _typed(self, kind: type, value: Any) -> Any:
        dtype, shape, data = value
        if kind is not Tensor:
            return np.frombuffer(data, dtype).reshape(shape)
        numbers = torch.empty(0, dtype=getattr(torch, dtype))
        if data:
            numbers = torch.frombuffer(bytearray(data), dtype=numbers.dtype)
        return numbers.view(shape).to(self.device)


def _plain(value: Any) -> Any:
    """Encode a tensor or an array as its dtype, shape and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    assert isinstance(value, Tensor), f"commands carry no {type(value)}"
    data = value.cpu().contiguous()
    dtype = str(data.dtype).removeprefix("torch.")
    return dtype, tuple(data.shape), data.view(torch.uint8).numpy().tobytes()
