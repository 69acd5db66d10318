"""Messages between gateway, scheduler and worker. Per-step data is packed into columns."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import Message
from baton.protocol.control import HeldPages
from baton.protocol.experts import ExpertBalance
from baton.protocol.media import Media
from baton.protocol.pooling import Pooled, Pooling
from baton.protocol.sampling import Sampling


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of selected tokens, in parallel columns.

    Values are natural logarithms of the softmax of the raw logits in float32.
    """

    rows: bytes
    """uint32 per entry: index of the described token in the message."""
    chosen: bytes
    """float32 per entry: log-probability of that token."""
    ranks: bytes
    """uint32 per entry: rank of that token; 1 is the most probable."""
    counts: bytes
    """uint8 per entry: number of alternatives in `top_ids` and `top_values`."""
    top_ids: bytes
    """int32, concatenated over entries: alternative token ids, most probable first."""
    top_values: bytes
    """float32, concatenated alike: their log-probabilities."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of prompt tokens start .. start + n - 1 of one sequence.

    Entry i (rows = 0 .. n-1) describes prompt token start + i given all before it. The first
    token of a prompt has no log-probability, so start is at least 1.
    """

    slot: int
    """The worker's slot in a `Result`; the gateway's handle in `Tokens`."""
    start: int
    columns: Logprobs


MissReason: TypeAlias = Literal[
    "none", "cold", "end", "differs", "evicted", "salt", "whole", "off", ""
]
"""Why the prefix cache hit ended where it did:

none     every reusable block was a hit
cold     no cached sequence shares the first block
end      the cached sequence ends at the miss
differs  the cached sequence continues with other tokens
evicted  the block was cached, but has been evicted or reset
salt     the block is cached under another salt
whole    the request needs its whole prompt computed (prompt log-probabilities, pooling)
off      the prefix cache is disabled
"""


class QueueEstimate(msgspec.Struct, frozen=True, array_like=True):
    """Queue position and cache result of a sequence, sent once with its first tokens."""

    position: int
    """Number of sequences ahead of it in the queue when it arrived."""
    ttft_ms: int
    """Time to first token in milliseconds, estimated on arrival; -1 before any measurement."""
    miss_reason: MissReason = ""
    """Why the prefix cache hit ended; set only if `Submit.explain`."""
    miss_position: int = 0
    """Index of the first prompt token that was not cached; set only if `Submit.explain`."""


BACKGROUND = 2**31 - 1
"""Priority of background work: under every policy it comes after all other work, which may preempt
it."""


class Submit(Message, tag="submit", frozen=True):
    """Run one sequence. gateway -> scheduler, on arrival of a request: once per choice."""

    handle: int
    """uint32, chosen by the gateway, unique among its live sequences."""
    request: str
    """Request id, for logs and traces; choices of a request share it."""
    tokens: bytes
    """int32: prompt token ids."""
    sampling: Sampling
    log: bytes = b""
    """int32: output tokens already produced; the sequence continues after them."""
    priority: int = 0
    """Lower values first, under the priority policy. `BACKGROUND` always comes last."""
    tenant: str = ""
    """Account that the sequence is charged to; fair queueing is between tenants."""
    salt: bytes = b""
    """Root of the block hash chain: only sequences of equal salt share cached pages."""
    explain: bool = False
    """Report the reason for the prefix cache miss in `QueueEstimate`."""
    pooling: Pooling | None = None
    """Return a pooled vector instead of tokens; then `sampling.max_tokens` is 0, `log` empty."""
    media: tuple[Media, ...] = ()
    """Media items of the prompt, in the order of their tokens."""
    model: str = ""
    """Name of the model: only its workers run the sequence. Empty means any worker, which is
    correct only if all serve one model."""
    adapter: bytes = b""
    """Digest of the adapter that is applied to the model; empty for none."""
    prediction: bytes = b""
    """int32: expected output tokens; they are used as drafts, and do not affect the output."""


class Abort(Message, tag="abort", frozen=True):
    """End these sequences. gateway -> scheduler, on disconnect, stop string or deadline."""

    handles: bytes
    """uint32"""


class PhaseTimes(msgspec.Struct, frozen=True, array_like=True):
    """Time that one sequence spent in each phase at the scheduler, from arrival to finish.

    Durations are in seconds of the scheduler's clock; the first six fields add up to the total.
    """

    queued: float = 0.0
    """Waiting for its first worker."""
    prefill: float = 0.0
    """On a worker, before its first token."""
    decode: float = 0.0
    preempted: float = 0.0
    """From each preemption to the next token."""
    worker_loss: float = 0.0
    """From each loss of its worker to the next token."""
    handover: float = 0.0
    """From each change of worker to the next token; the KV transfer before it counts as decode."""
    preemptions: int = 0
    losses: int = 0
    handovers: int = 0
    batch_neighbours: float = 0.0
    """Mean number of other rows in the steps that it ran in."""
    worker: str = ""
    """Name of its last worker; empty if it never ran."""
    draft_tokens: int = 0
    """Draft tokens that were verified for it."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted: each has saved a step."""
    weights: tuple[tuple[int, str], ...] = ()
    """Index of an output token -> version of the weights of the tokens from there on; empty if it
    never ran."""


class Tokens(Message, tag="tokens", frozen=True):
    """Output of one worker step for one gateway. scheduler -> gateway, after each step."""

    handles: bytes
    """uint32 per row: the gateway's handle of the sequence"""
    first: bytes
    """uint32 per row: index in its output of the row's first token in this message"""
    counts: bytes
    """uint8 per row: number of tokens"""
    tokens: bytes
    """int32, concatenated over rows: token ids"""
    finished: dict[int, str] = msgspec.field(default_factory=dict)
    """handle -> finish reason"""
    logprobs: Logprobs | None = None
    """`rows` index the concatenated tokens."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    cached: dict[int, int] = msgspec.field(default_factory=dict)
    """handle -> prompt tokens read from the prefix cache; once, with the first tokens"""
    pooled: Pooled | None = None
    """Pooled vectors of sequences that finish with this message; `rows` are handles."""
    estimates: dict[int, QueueEstimate] = msgspec.field(default_factory=dict)
    """handle -> queue position and cache result; once, with the first tokens"""
    phase_times: dict[int, PhaseTimes] = msgspec.field(default_factory=dict)
    """handle -> time per phase, for sequences that have finished or were aborted"""


class ResetCache(Message, tag="reset_cache", frozen=True):
    """Evict every cached page that no sequence uses. gateway -> scheduler, on request."""

    id: int
    """Chosen by the gateway; the answer carries it."""


class CacheReset(Message, tag="cache_reset", frozen=True):
    """Answer to `ResetCache`. scheduler -> gateway."""

    id: int
    pages: int
    """Number of cached pages that were evicted."""


class Failed(Message, tag="failed", frozen=True):
    """One sequence ends in an error. scheduler -> gateway, once per sequence."""

    handle: int
    code: str
    message: str
    status: int = 500
    """HTTP status."""
    retry_after: int = 0
    """Seconds; 0 means no hint."""
    phase_times: PhaseTimes | None = None
    """Time that the sequence spent in each phase."""


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that enters a worker's batch, either new or resumed with its output so far."""

    slot: int
    """Index in the worker's batch, 0 .. max_num_seqs - 1."""
    tokens: bytes
    """int32: prompt, then the output so far if the sequence is resumed."""
    num_prompt: int
    """Number of prompt tokens in `tokens`; the rest is output."""
    sampling: Sampling
    request: str = ""
    """Request id, for logs."""
    trace: str = ""
    """W3C traceparent of the request, or empty."""
    num_computed: int = 0
    """Number of leading `tokens` whose KV is already in the given pages (prefix cache hit)."""
    pooling: Pooling | None = None
    media: tuple[Media, ...] = ()
    """Media items of the prompt, in the order of their tokens."""
    adapter: bytes = b""
    """Digest of its adapter; empty for none."""
    cache_root: bytes = b""
    """Root of its block hashes: sequences of equal roots may share cached pages and drafts."""
    prediction: bytes = b""
    """int32: expected output tokens."""


class Plan(Message, tag="plan", frozen=True):
    """One or more steps of one worker: batch changes, then rows to run. scheduler -> worker.

    The worker applies the fields in this order: release, new sequences, pages, drops, swap out,
    swap in, copies, rows. Plans run in the order of `step`. The scheduler sends the next plan
    while this one runs, so the input token of a decode row is not sent: the worker takes the token
    that the previous step sampled.
    """

    epoch: int
    """The worker's incarnation, from its Hello; a worker ignores plans of another epoch."""
    step: int
    """Number of the plan's first step."""
    rows: bytes
    """uint32: slots that run in this step"""
    num_computed: bytes
    """uint32 per row: tokens whose KV is already in pages. An estimate for a decode row with a
    grammar or drafts: the worker continues at its own position"""
    num_scheduled: bytes
    """uint32 per row: new tokens to run: 1 for decode, a chunk for prefill. The worker may extend
    a sampling row by tokens that its grammar forces or that it drafts, within the row's pages"""
    samples: bytes
    """uint8 per row: 1 if a token is sampled after the row's last scheduled token"""
    release: bytes = b""
    """uint32: slots that leave the batch first"""
    new_sequences: tuple[NewSequence, ...] = ()
    page_rows: bytes = b""
    """uint32: slots whose block table grows"""
    page_counts: bytes = b""
    """uint32 per page row: number of pages"""
    pages: bytes = b""
    """uint32, concatenated over page rows: page numbers, appended to each slot's block table"""
    copy_from: bytes = b""
    """uint32: source pages of copies, done after block tables are updated and before rows run"""
    copy_to: bytes = b""
    """uint32 per copy: destination page"""
    swap_out: bytes = b""
    """uint32 pairs (page, host page): copies to host memory, before swap in and page copies"""
    swap_in: bytes = b""
    """uint32 pairs (host page, page): copies from host memory, after swap out, before page
    copies"""
    num_steps: int = 1
    """Number of consecutive steps that the plan covers. In each later step the rows that still have
    steps left run one position further. Every step has its own `Result`."""
    steps_per_row: bytes = b""
    """uint32 per row, 1 .. num_steps: number of steps that the row runs in; empty means 1. A row
    with more than 1 is a decode row: it schedules 1 token per step and samples."""
    drop_rows: bytes = b""
    """uint32: slots that gave up pages outside their attention window; applied after pages are
    appended"""
    drop_counts: bytes = b""
    """uint32 per drop row: total number of leading blocks without pages. For a new sequence,
    `pages` begins after them"""
    page_groups: bytes = b""
    """uint8 per page row: page group of the pages; empty means group 0"""
    drop_groups: bytes = b""
    """uint8 per drop row: page group; empty means group 0"""


class TruncatePlan(Message, tag="truncate_plan", frozen=True):
    """End a plan of several steps early. scheduler -> worker, when new work is waiting.

    The next step of the plan to start is its last; the first step always runs. The next `Result`
    carries `truncated_at`, unless the plan has already ended.
    """

    epoch: int
    step: int
    """Number of the plan's first step."""


class PageHashes(Message, tag="page_hashes", frozen=True):
    """Changes to the hashes of a worker's cached pages. scheduler -> worker.

    The worker returns its table in its next Hello, so the prefix cache survives a restart of the
    scheduler. The message precedes every plan or pull that overwrites a page it evicts.
    """

    epoch: int
    added: HeldPages
    evicted: bytes = b""
    """uint32: pages whose hash, sent earlier, is no longer valid"""


class Result(Message, tag="result", frozen=True):
    """Output of one step. worker -> scheduler, after every step.

    A row that had already finished (its stop id was sampled in an earlier step) is absent.
    """

    epoch: int
    step: int
    rows: bytes
    """uint32: slots that sampled"""
    first: bytes
    """uint32 per row: index in its output of the row's first token of this step"""
    counts: bytes
    """uint8 per row: number of tokens of this step. 1 without a grammar and drafts. More if tokens
    were forced or drafts accepted before the sampled one; 0 if earlier ones filled the row's
    pages"""
    tokens: bytes
    """int32, concatenated over rows: token ids"""
    finished: dict[int, str] = msgspec.field(default_factory=dict)
    """slot -> finish reason, "stop" when a stop id was sampled"""
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """slot -> error of this sequence alone, for example NaN logits"""
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    duration_us: int = 0
    """Wall time of the step on the worker, in microseconds."""
    swap_us: int = 0
    """Part of `duration_us` spent on swaps, in microseconds."""
    truncated_at: int = 0
    """Number of the last step of the plan that a `TruncatePlan` ended; 0 if none was truncated."""
    gap_us: int = 0
    """Idle time of the device between the previous step and this one while sequences were ready to
    run, in microseconds; 0 if there was no work."""
    pooled: Pooled | None = None
    """Pooled vectors of sequences whose last token has run; `rows` are slots."""
    drafted: bytes = b""
    """uint8 per row: draft tokens that were verified; empty if there were none"""
    accepted: bytes = b""
    """uint8 per row: how many of them are among the row's tokens; empty alike"""
    encoder_us: int = 0
    """Part of `duration_us` spent on encoding media, in microseconds."""
    num_encoded: int = 0
    """Media items encoded in this step."""
    num_encoded_tokens: int = 0
    """Number of their embeddings."""
    invalid: bytes = b""
    """uint32: slots among `failed` whose request is at fault, for example an image whose embeddings
    are not finite"""
    experts: ExpertBalance | None = None
    """Expert balance since their last result, of workers that balance experts."""
    unfollowable: bytes = b""
    """uint32: slots among `failed` whose grammar cannot be followed any further"""
