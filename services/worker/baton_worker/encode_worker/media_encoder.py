"""A vision tower without a decoder: media to embeddings."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import torch
from torch import Tensor

from baton.logs import logger
from baton.protocol import Media
from baton_worker.checkpoint.load_tower import load_tower
from baton_worker.config import Config
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal.encoder_step import NOT_FINITE
from baton_worker.engine.multimodal.pixels import PixelsError
from baton_worker.engine.multimodal_input import encoder_input
from baton_worker.engine.startup import narrow_dtype, prepare
from baton_worker.kernels.cpu.huge_pages import ARENA
from baton_worker.models.vision.media_tower import MediaTower, is_finite

log = logger(__name__)


class MediaEncoder:
    """Encodes one item at a time, and keeps what it has encoded.

    Args:
        tower: the encoder with its projector.
        cache: embeddings by key of their item.
        device: that of the tower.
    """

    def __init__(
        self, tower: MediaTower, cache: EncoderCache, device: torch.device, weight_bytes: int = 0
    ) -> None:
        self.tower, self.device, self.weight_bytes = tower, device, weight_bytes
        self._cache = cache
        self._finished = 0

    @classmethod
    def build(cls, config: Config, path: Path) -> MediaEncoder:
        """Load the tower of a checkpoint.

        Raises:
            ModelError: it has none.
        """
        context = prepare(config)
        narrow = narrow_dtype(config, context)
        loaded = load_tower(path, context, narrow=narrow, dummy=config.load_format == "dummy")
        ARENA.close_all()
        cache = EncoderCache(config.encoder_cache_bytes)
        log.info(
            "encoding media in %s on %s: the tower has %d MiB, the decoder is not loaded",
            *(loaded.tower.dtype, context.device, loaded.weight_bytes >> 20),
        )
        return cls(loaded.tower, cache, context.device, loaded.weight_bytes)

    @property
    def progress(self) -> int:
        """A counter that advances within an encoding. Any thread may read it."""
        return self._finished + self.tower.progress

    def __contains__(self, key: object) -> bool:
        return key in self._cache

    def encode(self, item: Media) -> Tensor:
        """The embeddings of an item, [n, `tower.width`], from the cache if they are there.

        Raises:
            PixelsError: its tensor does not fit the encoder, or its embeddings are not finite.
            PixelsMissing: its pixels are in no memory any more.
        """
        self._finished += 1
        if item.digest in self._cache:
            return self._cache.get(item.digest)
        pixels = encoder_input(item, self.tower)
        [embeddings] = self.tower.encode_media([torch.from_numpy(pixels.copy())], [item.grid])
        if not is_finite(embeddings):
            raise PixelsError(NOT_FINITE)
        self._cache.put(item.digest, embeddings)
        return embeddings

    def trim(self, pinned: Container[bytes]) -> None:
        """Evict items beyond the bound of the cache, except `pinned` ones."""
        self._cache.trim(pinned)
