"""The gateway as its peers know it."""

from __future__ import annotations

from baton.net.handshake import incarnation
from baton.protocol import Hello

ME = Hello("gateway", "g", incarnation(), "0")
