"""Gateway to scheduler to worker and back. What is sent every step is columnar."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message
from baton.protocol.control import HeldPages
from baton.protocol.media import Blob
from baton.protocol.pooling import Pooled, Pooling
from baton.protocol.sampling import Sampling


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of some tokens, in parallel columns.

    Values are natural logarithms of the softmax of the raw logits in float32.
    """

    rows: bytes
    """uint32: which token of the message each entry describes."""
    chosen: bytes
    """float32: log-probability of that token."""
    ranks: bytes
    """uint32: its rank, 1 is the most probable."""
    counts: bytes
    """uint8: how many alternatives follow for each entry."""
    top_ids: bytes
    """int32, concatenated, most probable first."""
    top_values: bytes
    """float32, concatenated."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of prompt tokens start .. start + n - 1 of one sequence.

    Entry i (rows = 0 .. n-1) describes prompt token start + i given all before it. The first
    token of a prompt has no log-probability, so start is at least 1.
    """

    slot: int
    """The worker's slot; on the way to a gateway, the gateway's handle."""
    start: int
    columns: Logprobs


MissReason: TypeAlias = Literal[
    "none", "cold", "end", "differs", "evicted", "salt", "whole", "off", ""
]
"""Why the prefix cache held no more of a prompt:

none     it held all that can be reused
cold     nothing that begins like this was computed here
end      what is cached ends there, and nothing is known to go on from it
differs  what is cached goes on with other tokens
evicted  it was cached, and has made room since or was reset
salt     it is cached without the request's salt
whole    the request needs all of its prompt computed: for log-probabilities, for a vector
off      there is no prefix cache
"""


class QueueEstimate(msgspec.Struct, frozen=True, array_like=True):
    """What is told of a sequence once, with its first tokens."""

    position: int
    """How many sequences were to run before it when it arrived."""
    ttft_ms: int
    """Milliseconds to its first token, as estimated then; -1 when nothing was measured yet."""
    miss_reason: MissReason = ""
    """Why no more of the prompt was cached, if the gateway has asked."""
    miss_position: int = 0
    """Number of the first prompt token that was not cached, if it has asked."""


class Submit(Message, tag="submit", frozen=True):
    """One sequence to run: gateway -> scheduler. A request with n choices submits n of them."""

    handle: int
    """uint32, chosen by the gateway, unique among its live sequences."""
    request: str
    """Request id, for logs and traces; choices of a request share it."""
    tokens: bytes
    """int32 prompt."""
    sampling: Sampling
    log: bytes = b""
    """int32 tokens already produced: the sequence continues from here."""
    priority: int = 0
    tenant: str = ""
    """Who pays: fairness is between tenants."""
    salt: bytes = b""
    """Root of the prefix cache's hash chain: only sequences of equal salt share pages."""
    explain: bool = False
    """Tell why no more of the prompt was found in the prefix cache."""
    pooling: Pooling | None = None
    """Not tokens but a vector is wanted: `sampling.max_tokens` is 0 and `log` is empty then."""
    media: tuple[Blob, ...] = ()
    """What its placeholder tokens stand for, in their order."""


class Abort(Message, tag="abort", frozen=True):
    """End these sequences: client gone, stop string, deadline. gateway -> scheduler."""

    handles: bytes
    """uint32"""


class PhaseTimes(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of one sequence went, from its arrival at the scheduler to its end there.

    In seconds of the scheduler's clock; the first six add up to the sequence's life.
    """

    queued: float = 0.0
    """Before any worker had it."""
    prefill: float = 0.0
    """On a worker, before its first token."""
    decode: float = 0.0
    preempted: float = 0.0
    """From each time that it made room for another one to its next token."""
    worker_loss: float = 0.0
    """From each loss of its worker to its next token."""
    handover: float = 0.0
    """From each change of its worker to its next token: keys go over while it still runs."""
    preemptions: int = 0
    losses: int = 0
    handovers: int = 0
    batch_neighbours: float = 0.0
    """Mean number of other rows in the steps that its workers ran meanwhile."""
    worker: str = ""
    """The last one that it ran on; empty when none has had it."""


class Tokens(Message, tag="tokens", frozen=True):
    """What one worker step produced for one gateway. scheduler -> gateway."""

    handles: bytes
    """uint32 per row"""
    first: bytes
    """uint32 per row: index in the token log of the row's first token in this message"""
    counts: bytes
    """uint8 per row"""
    tokens: bytes
    """int32, concatenated"""
    finished: dict[int, str] = msgspec.field(default_factory=dict)
    """handle -> finish reason"""
    logprobs: Logprobs | None = None
    """`rows` index the concatenated tokens."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    cached: dict[int, int] = msgspec.field(default_factory=dict)
    """handle -> prompt tokens that came from the prefix cache; once, with the first tokens"""
    pooled: Pooled | None = None
    """Vectors of sequences that end with this message."""
    estimates: dict[int, QueueEstimate] = msgspec.field(default_factory=dict)
    """handle -> what is told once, with the first tokens"""
    phase_times: dict[int, PhaseTimes] = msgspec.field(default_factory=dict)
    """handle -> where its time went, of sequences that have ended here, or were aborted"""


class ResetCache(Message, tag="reset_cache", frozen=True):
    """Forget every cached prefix that no sequence uses. gateway -> scheduler."""

    id: int


class CacheReset(Message, tag="cache_reset", frozen=True):
    """Answer to ResetCache."""

    id: int
    pages: int
    """How many cached pages became free."""


class Failed(Message, tag="failed", frozen=True):
    """One sequence ends in an error. scheduler -> gateway."""

    handle: int
    code: str
    message: str
    status: int = 500
    retry_after: int = 0
    phase_times: PhaseTimes | None = None
    """Where its time went."""


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that enters a worker's batch, fresh or continued from its log."""

    slot: int
    tokens: bytes
    """int32: prompt and, when the sequence is continued, the tokens it has produced."""
    num_prompt: int
    """How many of `tokens` are prompt; the rest is log."""
    sampling: Sampling
    request: str = ""
    trace: str = ""
    num_computed: int = 0
    """How many of `tokens` have their keys in the given pages already: a prefix cache hit."""
    pooling: Pooling | None = None
    media: tuple[Blob, ...] = ()
    """What its placeholder tokens stand for, in their order."""


class Plan(Message, tag="plan", frozen=True):
    """One step of one worker: only what changed, then the rows to run. scheduler -> worker.

    Applied in this order: release, enter, append pages, run. Plans are executed in the order
    of `step`; the next one is sent while this one runs, so a decode row's input token is the
    one that the previous step sampled, which only the worker has.
    """

    epoch: int
    """The worker's incarnation as granted at its Hello; others are refused."""
    step: int
    rows: bytes
    """uint32 slots that run in this step"""
    num_computed: bytes
    """uint32 per row: tokens of the sequence whose keys are already in pages. A guess for a decode
    row that follows a grammar: it goes on where it is"""
    num_scheduled: bytes
    """uint32 per row: new tokens to run: 1 for decode, a chunk for prefill. A row that samples may
    add what its grammar forces, as far as its pages go"""
    samples: bytes
    """uint8 per row: 1 when a token is sampled after the last of them"""
    release: bytes = b""
    """uint32 slots that leave the batch before anything else"""
    new_sequences: tuple[NewSequence, ...] = ()
    page_rows: bytes = b""
    """uint32 slots that get more pages"""
    page_counts: bytes = b""
    """uint32 per page row"""
    pages: bytes = b""
    """uint32 page numbers, concatenated, appended to each slot's page table"""
    copy_from: bytes = b""
    """uint32 pages whose content is copied, after the page tables and before the rows"""
    copy_to: bytes = b""
    """uint32 pages that receive it, pairwise"""
    swap_out: bytes = b""
    """uint32 pairs (page, host page): content that goes to host memory before all that follows"""
    swap_in: bytes = b""
    """uint32 pairs (host page, page): content that comes back, after that and before copies"""
    num_steps: int = 1
    """It is also the plan of the steps that follow, so many together: in each of them the rows
    that still have turns run one position further. Every step has a Result of its own."""
    steps_per_row: bytes = b""
    """uint32 per row, 1 .. steps: in how many of the steps it runs; empty means in one. A row with
    more than one decodes: its count is 1 and it samples."""
    drop_rows: bytes = b""
    """uint32 slots that have let go of pages that no token to come can see; known to the worker
    before this plan, and applied once it has appended pages"""
    drop_counts: bytes = b""
    """uint32 per drop row: how many pages from its first on, all told, are not its own any more. A
    sequence that enters has never had them: its pages begin behind"""
    page_groups: bytes = b""
    """uint8 per page row: the group of layers whose pages these are; empty means the first"""
    drop_groups: bytes = b""
    """uint8 per drop row, alike"""


class TruncatePlan(Message, tag="truncate_plan", frozen=True):
    """End a plan early: scheduler -> worker. The next of its steps that begins is its last; the
    first one runs in any case. The next Result carries `until`, unless the plan is over."""

    epoch: int
    step: int
    """First step of the plan."""


class PageHashes(Message, tag="page_hashes", frozen=True):
    """What pages hold for later sequences: scheduler -> worker, which says it again with its next
    Hello. Comes before every plan or pull that writes to a page which is forgotten in it."""

    epoch: int
    added: HeldPages
    evicted: bytes = b""
    """uint32 pages that have lost the name of which the worker was told"""


class Result(Message, tag="result", frozen=True):
    """What one step produced. worker -> scheduler.

    A row that had already finished (its stop id was sampled in an earlier step) is absent.
    """

    epoch: int
    step: int
    rows: bytes
    """uint32 slots that sampled"""
    first: bytes
    """uint32 per row: index in its log of the row's first token of this step"""
    counts: bytes
    """uint8 per row: tokens of this step: one; more where a grammar forced some before it; none
    where that has brought the sequence to the end of its pages, and it waits for another"""
    tokens: bytes
    """int32, concatenated"""
    finished: dict[int, str] = msgspec.field(default_factory=dict)
    """slot -> finish reason, "stop" when a stop id was sampled"""
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """slot -> what went wrong with this sequence alone, for example NaN logits"""
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    duration_us: int = 0
    """Wall time of the step on the worker."""
    swap_us: int = 0
    """Of it, the time that swaps took."""
    truncated_at: int = 0
    """The plan that was last sent has been cut: this is the number of its last step. 0 says
    nothing."""
    gap_us: int = 0
    """Time that the device was idle before this step although sequences were waiting to go on: from
    the end of the step before to the start of this one. 0 when there was nothing to do."""
    pooled: Pooled | None = None
    """Vectors of sequences whose last token has run."""
