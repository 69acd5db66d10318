"""Tensors through shared memory, from one end of a channel to the other."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch

from baton_worker.distributed.tensor_channel import Receiver, Sender


@pytest.fixture
def ends() -> Iterator[tuple[Sender, Receiver]]:
    here, there = socket.socketpair()
    with here, there:
        yield Sender(here, 1), Receiver(there, 0)


def test_any_tensor_arrives_as_it_was_when_it_was_sent(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    tensors = [
        torch.tensor(3, dtype=torch.int64),
        torch.zeros(0, 4),
        torch.arange(6.0).view(2, 3).T,
        torch.tensor([True, False, True]),
        torch.randn(5, 3).to(torch.bfloat16),
    ]
    for tensor in tensors:
        sent = tensor.clone()
        sender.send(tensor)
        tensor.fill_(0)
        assert torch.equal(receiver.receive(torch.empty_like(sent)), sent)
    assert len(sender._segments) == 1, "a segment that was read is used again"


def test_more_and_larger_tensors_than_there_are_segments(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    for number in range(3):  # In the second round segments are free, but too small for some.
        tensors = [torch.full((100 << 3 * size,), float(number)) for size in range(number, 5)]
        for tensor in tensors:
            sender.send(tensor)
        for tensor in tensors:
            assert torch.equal(receiver.receive(torch.empty_like(tensor)), tensor)


def test_an_arrival_is_completed_when_its_tensor_is_here(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    first, second = torch.zeros(2), torch.zeros(2)
    arrivals = receiver.expect(first), receiver.expect(second)
    assert not arrivals[0].is_completed()
    sender.send(torch.full((2,), 1.0))
    sender.send(torch.full((2,), 2.0))
    arrivals[1].wait()
    assert arrivals[0].is_completed() and arrivals[1].is_completed()
    assert first.tolist() == [1, 1] and second.tolist() == [2, 2]


def test_the_end_of_the_other_process_is_an_error() -> None:
    here, there = socket.socketpair()
    with there:
        here.close()
        with pytest.raises(ConnectionError, match="rank 0 of this group of workers ended"):
            Receiver(there, 0).receive(torch.zeros(2))
        with pytest.raises(ConnectionError, match="rank 0 of this group of workers ended"):
            Sender(there, 0).send(torch.zeros(2))
