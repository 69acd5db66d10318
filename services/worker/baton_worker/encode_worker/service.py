"""The encode worker as a service: register with the scheduler, encode in order, serve embeddings.

scheduler -- EncodeMedia --> encode --> offer, grant -- MediaEncoded --> scheduler
prefill worker -- Open, Fetch --> exporter thread
scheduler -- Revoke --> withdraw
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import closing

import torch

from baton import __version__
from baton.checkpoint.hub import resolve as fetch
from baton.checkpoint.hub import served_name
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, directory, reachable
from baton.net.handshake import Greeting, incarnation, unique_identity
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process import standby
from baton.process.lifecycle import Heartbeat, Lifecycle, default_name, process_id
from baton.process.watchdog import pulse
from baton.protocol import (
    Drain,
    EncodeMedia,
    Grant,
    Hello,
    MediaEncoded,
    Message,
    Revoke,
    WorkerInfo,
)
from baton.protocol.token_columns import unpack
from baton_worker.config import Config
from baton_worker.encode_worker.media_encoder import MediaEncoder
from baton_worker.engine.multimodal.pixels import PixelsError, PixelsMissing
from baton_worker.kv_transfer.embedding_content import EmbeddingContent
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.manager import bound_address, host, usable

_IDLE_SECONDS = 0.05
"""Longest sleep without a message: how late a signal or a lost registration is noticed."""

_REVOKED = "it was revoked"
"""Every order has one answer."""

log = logger(__name__)


class EncodeService:
    """One encoder, one scheduler. Each registration is an epoch of its own, as of other workers."""

    def __init__(
        self, encoder: MediaEncoder, config: Config, where: Directory, life: Lifecycle
    ) -> None:
        self._encoder, self._where, self._life = encoder, where, life
        self._name, self._keys = config.name or default_name("worker"), own_keys(config)
        self._transports = usable(config)
        self._content = EmbeddingContent(encoder.tower.width, encoder.tower.dtype)
        self._exporter = Exporter(
            self._content,
            bound_address(config),
            self._transports,
            host(config),
            trusted_network=config.trusted_network,
            keys=self._keys,
        )
        self._info = worker_info(
            encoder,
            served_name(config),
            config.advertise_kv or reachable(self._exporter.address),
            self._content.layout,
        )
        self._client = Client(FLEET, where.first(FLEET), unique_identity(self._name), self._keys)
        self._waiting: deque[EncodeMedia] = deque()
        self._offered: dict[int, bytes] = {}
        """By number of the encoding, the key of the item whose embeddings can be pulled."""
        self._replies: deque[MediaEncoded] = deque()
        self._drained = self._forgotten = False
        self._heart: Heartbeat | None = None
        self._greeting = self._new_greeting()

    def run(self) -> int:
        """Serve until the process should end. Returns its exit code."""
        self._exporter.start()
        with self._client:
            try:
                while not self._life.over(self._idle):
                    pulse.beat()
                    self._client.follow(self._where.first(FLEET))
                    wait((self._client,), 0 if self._waiting else _IDLE_SECONDS)
                    self._listen()
                    self._speak()
                    if self._waiting:
                        self._encode(self._waiting.popleft())
            finally:
                self._stop_heart()
                self._exporter.stop()
                for transport in self._transports.values():
                    transport.close()
        return 0

    @property
    def _idle(self) -> bool:
        return not (self._waiting or self._replies or self._offered)

    def _listen(self) -> None:
        if self._client.broke() and self._greeting.server is not None:
            self._forgotten = True
        for received in self._client.drain():
            message, known = received.message, self._greeting.server is not None
            if self._greeting.heard(message, time.monotonic()):
                self._joined()
            elif known and self._greeting.server is None:
                self._forgotten = True
            elif isinstance(message, EncodeMedia):
                self._take(message)
            elif isinstance(message, Revoke):
                self._revoke(message)
            elif isinstance(message, Drain):
                self._life.stop()

    def _take(self, order: EncodeMedia) -> None:
        if order.epoch == self._greeting.hello.incarnation:
            self._waiting.append(order)

    def _revoke(self, message: Revoke) -> None:
        if message.epoch != self._greeting.hello.incarnation:
            return
        ids = set(unpack(message.ids, "Q"))
        for order in [order for order in self._waiting if order.id in ids]:
            self._waiting.remove(order)
            self._replies.append(MediaEncoded(order.epoch, order.id, _REVOKED))
        self._exporter.revoke(list(ids))
        for number in ids:
            self._content.withdraw(number)
            self._offered.pop(number, None)
        self._encoder.trim(set(self._offered.values()))

    def _encode(self, order: EncodeMedia) -> None:
        begin, cached = time.perf_counter(), order.item.digest in self._encoder
        try:
            embeddings = self._encoder.encode(order.item)
        except PixelsError as error:
            missing = isinstance(error, PixelsMissing)
            reply = MediaEncoded(order.epoch, order.id, error.message, unavailable=missing)
            self._replies.append(reply)
            return
        self._offer(order, embeddings)
        took = 0 if cached else int((time.perf_counter() - begin) * 1e6)
        done = MediaEncoded(
            order.epoch,
            order.id,
            num_tokens=len(embeddings),
            num_bytes=embeddings.nbytes,
            duration_us=took,
        )
        self._replies.append(done)

    def _offer(self, order: EncodeMedia, embeddings: torch.Tensor) -> None:
        self._offered[order.id] = order.item.digest
        self._content.offer(order.id, embeddings)
        self._exporter.grant(Grant(order.epoch, order.id, order.token, b"", len(embeddings)))
        self._encoder.trim(set(self._offered.values()))

    def _speak(self) -> None:
        while self._replies and self._send(self._replies[0]):
            self._replies.popleft()
        stranger = self._heart is not None and self._heart.stranger.is_set()
        if stranger or self._forgotten:
            self._join_again()
        if self._greeting.server is None:
            self._send(self._greeting.due(time.monotonic()))
        elif self._life.draining and not self._drained:
            left = (self._life.draining_until or 0.0) - time.monotonic()
            self._drained = self._send(Drain(max(left, 0.0)))

    def _joined(self) -> None:
        log.info("joined the scheduler as %s, to encode media", self._name)
        self._stop_heart()
        self._heart = Heartbeat(
            FLEET, self._where, self._greeting.hello, self._progress, self._keys
        )
        self._heart.start()

    def _join_again(self) -> None:
        """Begin a new epoch: nothing waits and nothing can be pulled."""
        log.warning("lost touch with the scheduler: joining again")
        self._stop_heart()
        self._waiting.clear()
        self._replies.clear()
        self._offered.clear()
        self._exporter.reset()
        self._content.clear()
        self._drained = self._forgotten = False
        self._greeting = self._new_greeting()

    def _progress(self) -> tuple[int, bool]:
        return self._encoder.progress, bool(self._waiting)

    def _send(self, message: Message | None) -> bool:
        return message is not None and self._client.send(message)

    def _new_greeting(self) -> Greeting:
        who = ("worker", self._name, incarnation(), __version__)
        return Greeting(Hello(*who, worker=self._info))

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.stop()
            self._heart = None


def worker_info(encoder: MediaEncoder, model: str, address: str, layout: str) -> WorkerInfo:
    """What an encode worker tells about itself: it has no pages, runs no sequence, and serves
    embeddings of one layout."""
    return WorkerInfo(
        model=model,
        num_pages=0,
        page_size=0,
        max_num_seqs=0,
        max_num_batched_tokens=0,
        max_model_len=0,
        vocab_size=0,
        role="encode",
        device=encoder.device.type,
        dtype=str(encoder.tower.dtype).removeprefix("torch."),
        weight_bytes=encoder.weight_bytes,
        kv_address=address,
        encoder_layout=layout,
        process=process_id(os.getpid()),
        supervised=pulse.attached,
    )


def serve(config: Config, life: Lifecycle) -> int:
    """Load the tower, then serve with it."""
    encoder = MediaEncoder.build(config, fetch(config))
    standby.wait()
    with closing(directory(config)) as where:
        return EncodeService(encoder, config, where, life).run()
