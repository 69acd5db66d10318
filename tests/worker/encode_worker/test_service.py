"""The encode worker over real sockets, with a scheduler that follows a script."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.net.discovery import StaticDirectory, socket_path
from baton.net.handshake import PeerTable
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import Lifecycle
from baton.protocol import (
    Beat,
    Blob,
    Drain,
    EncodeMedia,
    Hello,
    Media,
    MediaEncoded,
    Message,
    Pull,
    Pulled,
    Revoke,
)
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.encode_worker.media_encoder import MediaEncoder
from baton_worker.encode_worker.service import EncodeService
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.kv_transfer.embedding_puller import EmbeddingPuller
from baton_worker.kv_transfer.manager import host, usable
from tests.fakes.vision_tower import HIDDEN, FakeTower

TOKEN = bytes(range(16))
SECONDS = 20.0


class Scheduler:
    """The server's half of the fleet link."""

    def __init__(self, run_dir: Path) -> None:
        self.server = Server(FLEET, socket_path(run_dir, FLEET))
        self.table = PeerTable(Hello("scheduler", "scheduler", 1, "0"))
        self.hellos: list[Hello] = []
        self.heard: list[Message] = []
        self.peer = b""

    def until(self, condition: Callable[[], object]) -> None:
        """Answer messages until a condition holds."""
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, "the worker did not do what was expected"
            wait((self.server,), 0.02)
            for peer, _, message in self.server.drain():
                self._take(peer, message)

    def _take(self, peer: bytes, message: Message) -> None:
        if isinstance(message, Hello):
            self.table.register(peer, message, time.monotonic())
            self.hellos.append(message)
            self.peer = peer
            self.server.send(peer, self.table.me)
        elif isinstance(message, Beat):
            self.server.send(peer, self.table.beat(message, time.monotonic()))
        else:
            self.heard.append(message)

    def answer(self, order: EncodeMedia) -> MediaEncoded:
        """Send an order and wait for its answer."""
        assert self.server.send(self.peer, order)
        self.until(lambda: any(getattr(m, "id", 0) == order.id for m in self.heard))
        return next(m for m in self.heard if isinstance(m, MediaEncoded) and m.id == order.id)


def one_pixel(value: float, key: bytes) -> Media:
    data = np.full(1, value, "<f4").tobytes()
    return Media(key * 32, 0, 3, Blob("float32", (1, 1, 1), data))


def test_orders_are_answered_once_and_embeddings_pulled_until_they_are_revoked(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(name="e0", model="org/seen", run_dir=run_dir, kv_transports="shm,tcp")
    fake, life = FakeTower(3), Lifecycle(drain_seconds=5)
    encoder = MediaEncoder(fake.tower, EncoderCache(1 << 20), torch.device("cpu"))
    scheduler = Scheduler(run_dir)
    service = EncodeService(encoder, config, StaticDirectory(config), life)
    thread = threading.Thread(target=service.run)
    thread.start()
    transports = usable(config)
    puller = EmbeddingPuller(HIDDEN, torch.float32, "w", transports, host(config))
    try:
        scheduler.until(lambda: scheduler.hellos)
        # No answer waits for another message.
        monkeypatch.setattr("baton_worker.encode_worker.service._IDLE_SECONDS", 10 * SECONDS)
        epoch, info = scheduler.hellos[0].incarnation, scheduler.hellos[0].worker
        assert info is not None and (info.role, info.num_pages) == ("encode", 0)
        assert info.encoder_layout == puller.layout
        done = scheduler.answer(EncodeMedia(epoch, 1, TOKEN, one_pixel(10.0, b"a")))
        assert (done.refused, done.num_tokens) == ("", 3) and done.duration_us > 0
        again = scheduler.answer(EncodeMedia(epoch, 2, TOKEN, one_pixel(10.0, b"a")))
        assert again.duration_us == 0 and fake.batches == [1]
        bad = scheduler.answer(EncodeMedia(epoch, 3, TOKEN, one_pixel(float("inf"), b"b")))
        assert "not finite" in bad.refused

        def pulled(number: int) -> tuple[str, list[float]]:
            puller.take(Pull(7, number, info.kv_address, TOKEN, 0, 3, b"", epoch, b"a" * 32))
            found = list[tuple[Pulled, torch.Tensor]]()
            scheduler.until(lambda: found.extend(puller.finished()) or found)
            [(ended, rows)] = found
            return ended.reason, [] if ended.reason else rows[:, 0].tolist()

        assert pulled(1) == pulled(2) == ("", [10.0, 11.0, 12.0])
        scheduler.server.send(scheduler.peer, Revoke(epoch, pack([1], "Q")))
        scheduler.server.send(scheduler.peer, Drain())
        scheduler.until(lambda: any(isinstance(m, Drain) for m in scheduler.heard))
        assert thread.is_alive() and pulled(2)[0] == ""  # It goes once nothing is offered.
        scheduler.server.send(scheduler.peer, Revoke(epoch, pack([2], "Q")))
        scheduler.until(lambda: not thread.is_alive())
    finally:
        life.stop()
        puller.close()
        thread.join(SECONDS)
        scheduler.server.close()
        for transport in transports.values():
            transport.close()
