"""Who is there and how they fare: hello, heartbeat, drain, statistics."""

from __future__ import annotations

import msgspec

from baton.protocol.base import PROTOCOL, Message
from baton.protocol.pooling import PoolingInfo


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a worker can do, told once in its Hello."""

    model: str
    """Name under which the model is served."""
    num_pages: int
    page_size: int
    """Tokens per page."""
    max_rows: int
    """Most sequences it holds at once; slots are 0 .. max_rows - 1."""
    max_batch_tokens: int
    """Most new tokens in one step."""
    max_length: int
    """Longest sequence, prompt and output together."""
    vocab_size: int
    role: str = "both"
    device: str = "cpu"
    dtype: str = "float32"
    weight_bytes: int = 0
    kv_bytes: int = 0
    eos_ids: tuple[int, ...] = ()
    pooling: PoolingInfo | None = None
    """What it gives in place of text; None when it only generates."""
    pages_address: str = ""
    """Where other workers can read its pages; empty when they cannot."""
    kv_layout: str = ""
    """What its pages hold of a token, layer by layer: only equal ones pass keys on."""
    host_pages: int = 0
    """Pages of host memory to which pages of the device can be swapped out."""
    window: int = 0
    """Every layer sees at most so many of the last tokens: pages wholly before them are of no use
    to a sequence. 0 when some layer sees all of them."""


class TokenizerInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a tokenizer can do, told once in its Hello."""

    model: str
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    bos_id: int = -1
    has_chat_template: bool = False
    special_ids: tuple[int, ...] = ()
    media_ids: tuple[int, ...] = ()
    """Placeholder tokens that stand for media; a client may not send them as ids."""


class MediaInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a media preprocessor accepts for its model, told once in its Hello."""

    model: str
    modalities: tuple[str, ...] = ()
    """Some of "image", "video", "audio"; empty for a text-only model."""


class Hello(Message, tag="hello", frozen=True):
    """First message of a peer, and its answer. Sent again when the other side has restarted."""

    service: str
    name: str
    incarnation: int
    """Random 63 bits, new at every start of the process."""
    version: str
    protocol: int = PROTOCOL
    worker: WorkerInfo | None = None
    tokenizer: TokenizerInfo | None = None
    media: MediaInfo | None = None


class Beat(Message, tag="beat", frozen=True):
    """I am alive, and this is how far I have come."""

    name: str
    incarnation: int
    progress: int = 0
    """A counter that advances whenever work is done: steps of a worker, messages of a server."""
    busy: bool = False
    """Work is waiting or running. Busy without progress is a hang."""


class Who(Message, tag="who", frozen=True):
    """A server has a message from a peer that it does not know: say Hello (again)."""

    incarnation: int


class Drain(Message, tag="drain", frozen=True):
    """Take no new work, finish what runs, then leave."""

    seconds: float = 30.0


class Retire(Message, tag="retire", frozen=True):
    """Let a worker drain: what it runs goes on elsewhere. operator -> scheduler"""

    name: str


class WorkerStats(msgspec.Struct, frozen=True, array_like=True):
    """One worker as the scheduler sees it."""

    name: str
    role: str
    state: str
    """"ready", "hung", "draining"."""
    device: str
    dtype: str
    running: int
    pages_total: int
    pages_free: int
    steps: int
    step_ms: float
    """Moving average of a step, dispatch to result, in milliseconds."""
    tokens_per_second: float
    weight_bytes: int
    kv_bytes: int
    pages_cached: int = 0
    """Those of `pages_free` that still hold a prefix which may be used again."""
    gap_ms: float = 0.0
    """Moving average of the time that the device waits between two steps while there is work."""


class Stats(Message, tag="stats", frozen=True):
    """The scheduler's view of the system, sent to every gateway a few times a second."""

    incarnation: int
    model: str
    """Empty until a worker has joined."""
    max_length: int
    vocab_size: int
    waiting: int
    waiting_tokens: int
    running: int
    preemptions: int
    finished: int
    tokens: int
    """Tokens sampled since the start."""
    tokens_per_second: float
    uptime: float
    eos_ids: tuple[int, ...] = ()
    workers: tuple[WorkerStats, ...] = ()
    lost_workers: int = 0
    dropped_frames: int = 0
    stale_results: int = 0
    prompt_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Those of them that were found there."""
    pooling: PoolingInfo | None = None
    """What the model gives in place of text; None when it only generates."""
    handoffs: int = 0
    """Running sequences that changed their worker, with their keys."""
    failed_transfers: int = 0
