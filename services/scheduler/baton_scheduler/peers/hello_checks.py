"""Why a process may not join: each check returns the reason, empty if there is none."""

from __future__ import annotations

from baton.errors import WireError
from baton.kv.page_hashes import split_hashes
from baton.logs import logger
from baton.net.handshake import check_version
from baton.protocol import HeldPages, Hello, WorkerInfo
from baton_scheduler.workers.fleet import Fleet

_MOST_LOGGED = 1000
_MOST_PAGES = 2**28
"""Maximum number of pages that a worker may report, since the state keeps data for each."""
_MOST_ROWS = 2**16

log = logger(__name__)


TAKEN = "another process has this name; give it one of its own, or end the other one"
"""Reason for refusing a name."""


class RefusalLog:
    """Logs refusals. A refused `Hello` stays unanswered and is repeated, so each is logged once."""

    def __init__(self) -> None:
        self._refused: set[int] = set()

    def add(self, hello: Hello, reason: str) -> None:
        """Log why a process may not join."""
        if hello.incarnation not in self._refused and len(self._refused) < _MOST_LOGGED:
            self._refused.add(hello.incarnation)
            log.error("%s may not join: %s", hello.name, reason)


def version_mismatch(hello: Hello) -> str:
    """Reason for refusing any peer: another version of the protocol."""
    try:
        check_version(hello)
    except WireError as error:
        return error.message
    return ""


def why_worker_refused(hello: Hello, fleet: Fleet) -> str:
    """Reason for refusing a worker."""
    if hello.worker is None:
        return "it does not say what it can do"
    if hello.worker.role == "encode":
        return why_encoder_refused(hello.worker)
    if not _sensible(hello.worker):
        return "its sizes are not positive, or too large"
    if not _can_hold(hello.worker, hello.held):
        return "it cannot have the pages that it says it holds"
    if fleet.refuses(hello.name, hello.incarnation):
        return "this epoch was given up"
    if not hello.worker.model:
        return "it does not name its model"
    return _disagreement(hello.name, hello.worker, fleet)


def why_encoder_refused(info: WorkerInfo) -> str:
    """Reason for refusing an encode worker, which has no pages and runs no sequence."""
    if not info.model:
        return "it does not name its model"
    if not info.kv_address or not info.encoder_layout:
        return "it does not say where and what it encodes"
    return ""


def _sensible(info: WorkerInfo) -> bool:
    sizes = (info.num_pages, info.page_size, info.max_num_batched_tokens, info.max_model_len)
    return all(1 <= size < _MOST_PAGES for size in sizes) and 1 <= info.max_num_seqs <= _MOST_ROWS


def _can_hold(info: WorkerInfo, held: HeldPages | None) -> bool:
    try:
        return held is None or all(page < info.num_pages for page in split_hashes(held))
    except ValueError:
        return False


def _disagreement(name: str, info: WorkerInfo, fleet: Fleet) -> str:
    """Reason for refusing a worker that differs from others of its model."""
    for other in fleet.serving(info.model):
        size = other.info.vocab_size
        if other.name != name and size != info.vocab_size:
            return f"{info.model} has {info.vocab_size} tokens here, {size} on {other.name}"
    return ""
