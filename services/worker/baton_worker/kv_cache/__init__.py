"""The paged key-value cache: its tensors and the bytes they take."""

from __future__ import annotations

from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_cache.cross_pages import bytes_per_cross_page
from baton_worker.kv_cache.layer_groups import (
    LayerGroups,
    group_bytes,
    held_groups,
    one_group,
    page_groups,
)
from baton_worker.kv_cache.page_shapes import bytes_per_page, page_shapes

__all__ = [
    "KVCache",
    "LayerGroups",
    "bytes_per_cross_page",
    "bytes_per_page",
    "group_bytes",
    "held_groups",
    "one_group",
    "page_groups",
    "page_shapes",
]
