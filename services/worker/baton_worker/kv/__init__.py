"""The paged key-value cache: its tensors and the bytes they take."""

from __future__ import annotations

from baton_worker.kv.cache import KVCache
from baton_worker.kv.layout import bytes_per_page, page_shapes, window

__all__ = ["KVCache", "bytes_per_page", "page_shapes", "window"]
