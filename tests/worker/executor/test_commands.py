"""Commands survive the pipe, and nothing else is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
import pytest
import torch

from baton.net import frames
from baton.protocol import Grant, Pull, Revoke
from baton_worker.attention import AttentionBatch
from baton_worker.executor.commands import (
    Begin,
    Clear,
    Command,
    Copy,
    End,
    Forget,
    Forward,
    Load,
    Logits,
    Pipe,
    Reader,
    Store,
    Take,
)

CPU = torch.device("cpu")


@pytest.fixture
def ends() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "wb") as write:
        yield read, write


@pytest.mark.parametrize(
    "command",
    [
        Begin(1, 2, "/run/ranks", {"model": "/m", "threads": 2, "keys_dir": None}),
        Logits((3, 64)),
        Copy([1, 2], [3, 4]),
        Clear(7, 3),
        Store([1], [0]),
        Load([0], [1]),
        Take(Grant(2**62, 3, bytes(16), b"pages", 40)),
        Take(Pull(1, 3, "tcp://a:1,tcp://a:2", bytes(16), 0, 40, b"pages", 2**62)),
        Take(Revoke(1, b"ids")),
        Forget(),
        End(),
    ],
    ids=lambda command: type(command).__name__,
)
def test_commands_come_out_as_they_went_in(
    ends: tuple[BinaryIO, BinaryIO], command: Command
) -> None:
    Pipe([ends[1]]).send(command)
    assert Reader(ends[0]).next() == command


def test_a_ragged_step_comes_out_as_it_went_in(ends: tuple[BinaryIO, BinaryIO]) -> None:
    """With the tables of every group of layers."""
    tables = torch.arange(8, dtype=torch.int32).view(2, 2, 2).numpy()
    batch = AttentionBatch.build_all([3, 1], [0, 5], tables, 4, CPU)
    tokens, positions = torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 2, 5])
    Pipe([ends[1]]).send(Forward(tokens, positions, batch, True))
    command = Reader(ends[0]).next()
    assert isinstance(command, Forward) and command.whole
    assert torch.equal(command.tokens, tokens) and torch.equal(command.positions, positions)
    for ours, theirs in ((command.batch, batch), (command.batch.of(1), batch.of(1))):
        assert (ours.query_lens, ours.num_computed, ours.page_size) == ((3, 1), (0, 5), 4)
        for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping"):
            found, expected = getattr(ours, name), getattr(theirs, name)
            assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_a_closed_pipe_is_the_end(ends: tuple[BinaryIO, BinaryIO]) -> None:
    ends[1].close()
    assert Reader(ends[0]).next() == End()


def test_every_follower_gets_every_command() -> None:
    pipes = [os.pipe() for _ in range(3)]
    files = [os.fdopen(writing, "wb") for _, writing in pipes]
    Pipe(list(files)).send(Clear(1, 2))
    for reading, _ in pipes:
        with os.fdopen(reading, "rb") as file:
            assert Reader(file).next() == Clear(1, 2)
    for file in files:
        file.close()


def test_what_is_no_command_is_refused(ends: tuple[BinaryIO, BinaryIO]) -> None:
    data = msgspec.msgpack.encode(["reboot"])
    frames.send(ends[1], data)
    with pytest.raises(msgspec.ValidationError):
        Reader(ends[0]).next()
    with pytest.raises(AssertionError, match="commands carry no"):
        Pipe([]).send(Begin(1, 2, "", {"model": object()}))
