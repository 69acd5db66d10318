"""Keys and values between workers: one serves granted pages, the other pulls them."""

from __future__ import annotations

from baton_worker.kv.transfer.exporter import Exporter
from baton_worker.kv.transfer.importer import Importer
from baton_worker.kv.transfer.relay import Relay

__all__ = ["Exporter", "Importer", "Relay"]
