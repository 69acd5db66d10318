"""Embeddings from one process's encoder to another's cache, over each transport."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from baton.protocol import Grant, Pull, Pulled
from baton_worker.config import Config
from baton_worker.kv_transfer.embedding_content import EmbeddingContent
from baton_worker.kv_transfer.embedding_puller import EmbeddingPuller
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.shm import Shm
from baton_worker.kv_transfer.tcp import Tcp

TOKEN = bytes(range(16))
KEY = b"k" * 32


def test_embeddings_arrive_bit_for_bit_and_only_while_granted(run_dir: Path, here: str) -> None:
    """Over shared memory and in messages."""
    config, address = Config(run_dir=run_dir), f"ipc://{run_dir}/e.sock"
    ways = {"shm": Shm(config), "tcp": Tcp(config)}
    content, given = EmbeddingContent(300, torch.bfloat16), torch.randn(2000, 300).bfloat16()
    content.offer(5, given)
    source = Exporter(content, address, ways, here)
    source.grant(Grant(3, 5, TOKEN, b"", 2000))
    source.start()
    try:
        for name, transport in ways.items():
            puller = EmbeddingPuller(300, torch.bfloat16, name, {name: transport}, here)
            puller.take(Pull(1, 5, address, TOKEN, 0, 2000, b"", 3, KEY))
            pulled, found = wait_for(puller)
            assert (pulled.reason, pulled.digest, pulled.transport) == ("", KEY, name)
            assert pulled.num_bytes == given.nbytes and torch.equal(found, given)
            puller.take(Pull(1, 5, address, bytes(16), 0, 2000, b"", 3, KEY))
            assert "refuses" in wait_for(puller)[0].reason
            assert not puller.busy
            puller.close()
    finally:
        source.stop()
        for transport in ways.values():
            transport.close()


def wait_for(puller: EmbeddingPuller) -> tuple[Pulled, torch.Tensor]:
    """The next pull that ends."""
    until = time.monotonic() + 60
    while not (found := puller.finished()):
        assert time.monotonic() < until
        time.sleep(0.005)
    return found[0]
