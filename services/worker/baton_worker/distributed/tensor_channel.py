"""One-way channels for tensors between two processes of a host: bytes in shared memory, signals
over a socket.

    sender                                               receiver
      copy into a free segment
      frame: number of the segment, bytes --- socket --->  copy out of it
      it is free again <--------------------- socket ----  number of the segment

Where no segment is free the sender maps another one, so it does not wait for the receiver; the
descriptor travels with the frame that first names the segment.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import struct
import tempfile
from collections import deque

import torch
from torch import Tensor

_FRAME = struct.Struct("=BQ")
"""Number of a segment, and bytes of the tensor in it."""

_SEGMENTS = 256
"""Most segments of a channel: tensors that were sent and not received."""

_LEAST_BYTES = 1 << 16
"""Size of the smallest segment; a larger one has the next power of two."""

_POLL_MS = 1
"""Milliseconds that `Arrival.is_completed` waits. Who calls it again and again would otherwise take
the processor from the rank that computes the tensor."""


class Sender:
    """The end of a channel that writes to rank `receiver`.

    Raises `ConnectionError` if the receiver has ended.
    """

    def __init__(self, connection: socket.socket, receiver: int) -> None:
        self._connection, self._receiver = connection, receiver
        self._segments = list[Tensor]()
        self._free = list[int]()

    def send(self, tensor: Tensor) -> None:
        """Send a tensor of any dtype, shape and strides; returns once it may be overwritten."""
        number, descriptors = self._segment(tensor.nbytes)
        room = self._segments[number][: tensor.nbytes]
        room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        try:
            socket.send_fds(self._connection, [_FRAME.pack(number, tensor.nbytes)], descriptors)
        except ConnectionError as error:
            raise _ended(self._receiver) from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _segment(self, size: int) -> tuple[int, list[int]]:
        """A free segment of at least `size` bytes, and its descriptor if the receiver lacks it."""
        if not self._fitting(size):
            self._collect(block=len(self._segments) == _SEGMENTS and not self._free)
        if fitting := self._fitting(size):
            self._free.remove(fitting[-1])
            return fitting[-1], []
        descriptor, segment = _new_segment(size)
        if self._free:  # All are too small.
            number = self._free.pop()
            self._segments[number] = segment
        else:
            number = len(self._segments)
            self._segments.append(segment)
        return number, [descriptor]

    def _fitting(self, size: int) -> list[int]:
        return [number for number in self._free if len(self._segments[number]) >= size]

    def _collect(self, *, block: bool) -> None:
        """Note which segments the receiver has read."""
        try:
            numbers = self._connection.recv(_SEGMENTS, 0 if block else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not numbers:
            raise _ended(self._receiver)
        self._free += numbers


class Receiver:
    """The end of a channel that reads from rank `sender`.

    Raises `ConnectionError` if the sender has ended.
    """

    def __init__(self, connection: socket.socket, sender: int) -> None:
        self._connection, self._sender = connection, sender
        self._segments = dict[int, Tensor]()
        self._expected = deque[Arrival]()
        self._poll = select.poll()  # `select.select` takes no descriptor above 1023.
        self._poll.register(connection, select.POLLIN)

    def receive(self, tensor: Tensor) -> Tensor:
        """Wait for the next tensor, which has the dtype and shape of this one, and overwrite it."""
        self.expect(tensor).wait()
        return tensor

    def expect(self, tensor: Tensor) -> Arrival:
        """Asynchronous `receive`; tensors arrive in the order of these calls."""
        arrival = Arrival(self, tensor)
        self._expected.append(arrival)
        return arrival

    def is_readable(self, milliseconds: int) -> bool:
        """Whether a tensor arrives within some milliseconds, or the sender ends."""
        return bool(self._poll.poll(milliseconds))

    def take(self) -> None:
        """Wait for the next tensor and complete the first arrival."""
        number, size = _FRAME.unpack(self._frame())
        arrival = self._expected.popleft()
        tensor = arrival.tensor
        tensor.copy_(self._segments[number][:size].view(tensor.dtype).view(tensor.shape))
        arrival.complete()
        with contextlib.suppress(ConnectionError):  # A sender that has ended needs no segment.
            self._connection.sendall(bytes([number]))

    def _frame(self) -> bytes:
        frame, descriptors, _, _ = socket.recv_fds(self._connection, _FRAME.size, 1)
        while len(frame) < _FRAME.size:
            more = self._connection.recv(_FRAME.size - len(frame))
            if not more:
                raise _ended(self._sender)
            frame += more
        for descriptor in descriptors:
            self._segments[frame[0]] = _map(descriptor)
            os.close(descriptor)
        return frame


class Arrival:
    """A tensor on its way through a channel; see `communicator.Arrival`."""

    def __init__(self, receiver: Receiver, tensor: Tensor) -> None:
        self._receiver, self.tensor = receiver, tensor
        self._completed = False

    def is_completed(self) -> bool:
        """Whether the tensor is here; waits a moment for it."""
        while not self._completed and self._receiver.is_readable(_POLL_MS):
            self._receiver.take()
        return self._completed

    def wait(self) -> None:
        """Wait for the tensor."""
        while not self._completed:
            self._receiver.take()

    def complete(self) -> None:
        """The receiver has overwritten the tensor."""
        self._completed = True


def _new_segment(size: int) -> tuple[int, Tensor]:
    """The descriptor of a new segment for `size` bytes, and its bytes."""
    descriptor = _new_file()
    os.ftruncate(descriptor, max(_LEAST_BYTES, 1 << (size - 1).bit_length()))
    return descriptor, _map(descriptor)


def _new_file() -> int:
    """A file without a name that no child process inherits."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("baton-ranks", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _map(descriptor: int) -> Tensor:
    size = os.fstat(descriptor).st_size
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _ended(rank: int) -> ConnectionError:
    return ConnectionResetError(f"rank {rank} of this group of workers ended")
