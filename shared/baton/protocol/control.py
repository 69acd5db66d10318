"""Who is there and how they fare: hello, heartbeat, drain, statistics."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import PROTOCOL, Message
from baton.protocol.pooling import PoolingInfo

Role: TypeAlias = Literal["both", "prefill", "decode"]
"""Legs of the relay that a worker runs."""


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a worker can do, told once in its Hello."""

    model: str
    """Name under which the model is served."""
    num_pages: int
    page_size: int
    """Tokens per page."""
    max_num_seqs: int
    """Most sequences it holds at once; slots are 0 .. max_rows - 1."""
    max_num_batched_tokens: int
    """Most new tokens in one step."""
    max_model_len: int
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
    kv_address: str = ""
    """Where other workers can read its pages; empty when they cannot."""
    kv_layout: str = ""
    """What its pages hold of a token, layer by layer: only equal ones pass keys on."""
    host_pages: int = 0
    """Pages of host memory to which pages of the device can be swapped out."""
    window: int = 0
    """Every layer sees at most so many of the last tokens: pages wholly before them are of no use
    to a sequence. 0 when some layer sees all of them."""
    windows: tuple[int, ...] = ()
    """The same for each group of layers with block tables of its own; see `baton.kv.page_groups`.
    Empty is one group, which sees `window`."""
    expert_group: str = ""
    """Workers that say the same end together: they share the experts of one model."""


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


class HeldPages(msgspec.Struct, frozen=True, array_like=True):
    """Pages of a worker and the names of what they hold; see `baton.kv.page_hashes`."""

    pages: bytes = b""
    """uint32"""
    hashes: bytes = b""
    """17 bytes for each page"""


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
    held: HeldPages | None = None
    """What a worker's pages still hold of earlier sequences, by the names that were
    `PageHashes`."""


class Beat(Message, tag="beat", frozen=True):
    """I am alive, and this is how far I have come."""

    name: str
    incarnation: int
    progress: int = 0
    """A counter that advances whenever work is done: steps of a worker, messages of a server."""
    busy: bool = False
    """Work is waiting or running. Busy without progress is a hang."""


class HelloRequest(Message, tag="hello_request", frozen=True):
    """A server has a message from a peer that it does not know: say Hello (again)."""

    incarnation: int


class Drain(Message, tag="drain", frozen=True):
    """Take no new work, finish what runs, then leave."""

    seconds: float = 30.0


class DrainWorker(Message, tag="drain_worker", frozen=True):
    """Let a worker drain: what it runs goes on elsewhere. operator -> scheduler"""

    name: str


class SetRole(Message, tag="set_role", frozen=True):
    """From now on a worker runs these legs; what does not fit them any more goes on elsewhere.
    operator -> scheduler -> worker, which says so when it joins again. operator -> supervisor: so
    it does after a restart."""

    name: str
    role: Role


class Resize(Message, tag="resize", frozen=True):
    """Have so many workers of each role. operator -> supervisor"""

    counts: dict[str, int]


class ResizeDone(Message, tag="resize_done", frozen=True):
    """The workers that a supervisor looks after, once it has done as it was told. supervisor ->
    operator"""

    workers: dict[str, str]
    """Roles by names; those that are leaving are not among them."""
    reason: str = ""
    """Why it has not; empty when it has."""


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
    pull_rate: float = 0.0
    """Bytes of keys per second that came here from others, while they came."""
    rank: int = -1
    """By which requests belong to it, under a placement that says so; -1 where they do not."""


class RoleStats(msgspec.Struct, frozen=True, array_like=True):
    """What an autoscaler should know of all workers of one role. Times are in seconds."""

    role: str
    ready: int
    """Workers that take work."""
    desired: int
    """Workers that would hold every target, as far as more of them help."""
    queue_seconds: float
    """How long the first has waited that waits for this role, or what waits takes to compute."""
    ttft_seconds: float
    """Moving average, arrival to first token; 0 for a role that does not begin sequences."""
    itl_seconds: float
    """Moving average between two tokens of a sequence; 0 for a role that does not decode."""
    pressure: dict[str, float]
    """Of queue, ttft, itl, kv and compute, how many times its target each of them is."""


class TransferStats(msgspec.Struct, frozen=True, array_like=True):
    """What one transport has carried between workers since the start."""

    transport: str
    """Empty transports are "none": two workers that never agreed on one."""
    done: int
    failed: int
    num_bytes: int
    seconds: float
    """All transfers that went well together, one after the other."""


class Stats(Message, tag="stats", frozen=True):
    """The scheduler's view of the system, sent to every gateway a few times a second."""

    incarnation: int
    model: str
    """Empty until a worker has joined."""
    max_model_len: int
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
    worker_losses: int = 0
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
    transferred_tokens: int = 0
    """Tokens whose keys were pulled from another worker."""
    roles: tuple[RoleStats, ...] = ()
    transfers: tuple[TransferStats, ...] = ()
