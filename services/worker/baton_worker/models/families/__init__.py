"""Every family, imported so that the table of architectures is complete."""

from __future__ import annotations

from baton_worker.models.families import llama
from baton_worker.models.families.common import DECLARED

__all__ = ["DECLARED", "llama"]
