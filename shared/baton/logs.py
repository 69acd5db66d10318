"""Log format of all services: time, level, service, request id, text."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="-")
"""Id of the request that the current context works on; part of every line."""

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(service)s[%(process)d] %(request)s %(message)s"


class _Context(logging.Filter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def filter(self, record: logging.LogRecord) -> bool:
        record.service = self._service
        record.request = getattr(record, "request", None) or request_id.get()
        return True


class _OneLine(logging.Formatter):
    """Escapes control characters, so that client input cannot split a line or reach a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def setup(service: str, level: str) -> None:
    """Send all logs of this process to standard error in the common format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine(_FORMAT, "%Y-%m-%dT%H:%M:%S"))
    handler.addFilter(_Context(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def logger(name: str) -> logging.Logger:
    """The logger of a module."""
    return logging.getLogger(name)
