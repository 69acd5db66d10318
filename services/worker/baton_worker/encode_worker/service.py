"""The encode worker as a service: register with the scheduler, encode in order, serve embeddings.

scheduler -- EncodeMedia --> encode --> offer, grant -- MediaEncoded --> scheduler
prefill worker -- Open, Fetch --> exporter thread
scheduler -- Revoke --> withdraw
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing

import torch

from baton.checkpoint.hub import resolve as fetch
from baton.checkpoint.hub import served_name
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, directory, reachable
from baton.process import standby
from baton.process.lifecycle import Lifecycle, default_name, own_process_id
from baton.process.watchdog import pulse
from baton.protocol import (
    EncodeMedia,
    Grant,
    MediaEncoded,
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
from baton_worker.platform.cpu_threads import set_niceness
from baton_worker.registration import Registration
from baton_worker.standby import in_place_of

_IDLE_SECONDS = 0.05
"""Longest sleep without a message: how late a signal or a lost registration is noticed."""

_NICENESS = 10
"""Of an encoder on a CPU: text streams of workers on the same cores go first, as a step that waits
for one of its threads delays every stream, and a late image only its own request."""

_REVOKED = "it was revoked"
"""Every order has one answer."""

log = logger(__name__)


class EncodeService:
    """One encoder, one scheduler. Each registration is an epoch of its own, as of other workers."""

    def __init__(
        self, encoder: MediaEncoder, config: Config, where: Directory, life: Lifecycle
    ) -> None:
        self._encoder, self._life = encoder, life
        self._transports = usable(config)
        self._content = EmbeddingContent(encoder.tower.width, encoder.tower.dtype)
        self._exporter = Exporter(
            self._content,
            bound_address(config),
            self._transports,
            host(config),
            trusted_network=config.trusted_network,
            keys=own_keys(config),
        )
        address = config.advertise_kv or reachable(self._exporter.address)
        info = worker_info(encoder, served_name(config), address, self._content.layout)
        name = config.name or default_name("worker")
        self._scheduler = Registration(config, name, where, life, info, self._progress)
        self._waiting: deque[EncodeMedia] = deque()
        self._offered: dict[int, bytes] = {}
        """By number of the encoding, the key of the item whose embeddings can be pulled."""
        self._replies: deque[MediaEncoded] = deque()

    def run(self) -> int:
        """Serve until the process should end. Returns its exit code."""
        self._exporter.start()
        with self._scheduler:
            try:
                while not self._life.over(self._idle):
                    pulse.beat()
                    self._scheduler.wait(0 if self._waiting else _IDLE_SECONDS)
                    self._listen()
                    if self._waiting:
                        self._encode(self._waiting.popleft())
                    self._send_due()
            finally:
                self._scheduler.stop_beats()
                self._exporter.stop()
                for transport in self._transports.values():
                    transport.close()
        return 0

    @property
    def _idle(self) -> bool:
        return not (self._waiting or self._replies or self._offered)

    def _listen(self) -> None:
        for message in self._scheduler.messages():
            if isinstance(message, EncodeMedia):
                self._take(message)
            elif isinstance(message, Revoke):
                self._revoke(message)

    def _take(self, order: EncodeMedia) -> None:
        if order.epoch == self._scheduler.epoch:
            self._waiting.append(order)

    def _revoke(self, message: Revoke) -> None:
        if message.epoch != self._scheduler.epoch:
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

    def _send_due(self) -> None:
        while self._replies and self._scheduler.send(self._replies[0]):
            self._replies.popleft()
        if self._scheduler.lost:
            self._join_again()
        self._scheduler.send_due()

    def _join_again(self) -> None:
        """Begin a new epoch: nothing waits and nothing can be pulled."""
        log.warning("lost touch with the scheduler: joining again")
        self._waiting.clear()
        self._replies.clear()
        self._offered.clear()
        self._exporter.reset()
        self._content.clear()
        self._scheduler.renew()

    def _progress(self) -> tuple[int, bool]:
        return self._encoder.progress, bool(self._waiting)


def worker_info(encoder: MediaEncoder, model: str, address: str, layout: str) -> WorkerInfo:
    """The Hello of an encode worker: it has no pages, runs no sequence, and serves embeddings of
    one layout."""
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
        process=own_process_id(supervised=pulse.attached),
        supervised=pulse.attached,
    )


def serve(config: Config, life: Lifecycle) -> int:
    """Load the tower, then serve with it."""
    encoder = MediaEncoder.build(config, fetch(config))
    if standby.held():
        log.info("loaded; waiting to fork encode workers")
    config = in_place_of(standby.wait(), config)
    if encoder.device.type == "cpu":
        set_niceness(_NICENESS)
    with closing(directory(config)) as where:
        return EncodeService(encoder, config, where, life).run()
