"""Control messages: handshake, heartbeat, drain, roles, statistics."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from baton.protocol.base import PROTOCOL, Message
from baton.protocol.pooling import PoolingInfo
from baton.protocol.speech import AnySpeechInfo
from baton.protocol.weights import DEFAULT_VERSION, WeightVersion

Role: TypeAlias = Literal["both", "prefill", "decode", "encode"]
"""What a worker runs: prefill, decode, both, or the encoder of media alone."""


class AdapterInfo(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter that a worker has in memory."""

    name: str
    """Name that clients request."""
    digest: bytes
    """Identity, 16 bytes: equal only for equal weights and scales."""
    path: str = ""
    """Folder that it was read from."""


class WorkerInfo(msgspec.Struct, frozen=True, array_like=True):
    """Capabilities of a worker, sent in its `Hello`."""

    model: str
    """Name under which the model is served."""
    num_pages: int
    page_size: int
    """Tokens per page."""
    max_num_seqs: int
    """Maximum number of sequences in the batch; slots are 0 .. max_num_seqs - 1."""
    max_num_batched_tokens: int
    """Maximum number of new tokens in one step."""
    max_model_len: int
    """Maximum number of tokens of a sequence, prompt and output together."""
    vocab_size: int
    role: str = "both"
    device: str = "cpu"
    dtype: str = "float32"
    weight_bytes: int = 0
    kv_bytes: int = 0
    eos_ids: tuple[int, ...] = ()
    pooling: PoolingInfo | None = None
    """Pooling task of the model; None if it only generates."""
    kv_address: str = ""
    """Address at which other workers read its pages; empty if it serves no KV transfers."""
    kv_layout: str = ""
    """Fingerprint of the KV of a token, per layer. KV is only transferred between equal layouts."""
    host_pages: int = 0
    """Pages of host memory for swapping."""
    window: int = 0
    """Attention window in tokens if every layer has one: pages wholly before it can be freed. 0 if
    some layer attends to the whole sequence."""
    windows: tuple[int, ...] = ()
    """Attention window in tokens of each page group, 0 for full attention; see
    `baton.kv.page_groups`. Empty means one group with `window`."""
    expert_group: str = ""
    """Expert-parallel group. Workers of one group share the experts of a model and fail
    together."""
    adapters: tuple[AdapterInfo, ...] = ()
    """Adapters in its memory. A name occurs twice while sequences finish with its previous content;
    the last one is current."""
    max_loras: int = 0
    """Maximum number of different adapters among the sequences of its batch."""
    max_cpu_loras: int = 0
    """Maximum number of adapters in its memory; 0 if unknown."""
    num_speculative_tokens: int = 0
    """Maximum draft tokens of a row in one step; 0 without speculation."""
    process: str = ""
    """Identifies the process among those of all hosts, for as long as it lives."""
    supervised: bool = False
    """A supervisor reports the exit status of the process to the scheduler."""
    asleep: int = 0
    """Level of its sleep, see `Sleep`; 0 while it is awake."""
    encoder_layout: str = ""
    """Fingerprint of the embeddings of media that it produces or accepts from an encode worker,
    which are only transferred between equal layouts; empty if it encodes no media in prompts."""
    weights: WeightVersion = WeightVersion()
    """Weights in use."""
    pipeline_stages: int = 1
    """Stages of a pipeline that run steps of different sequences at the same time."""
    alignment: bool = False
    """Whether it can report the times of tokens in a recording; see `Pooling.aligned_from`."""


class TokenizerInfo(msgspec.Struct, frozen=True, array_like=True):
    """Capabilities of a tokenizer, sent in its `Hello`."""

    model: str
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    bos_id: int = -1
    has_chat_template: bool = False
    special_ids: tuple[int, ...] = ()
    media_ids: tuple[int, ...] = ()
    """Placeholder tokens of media items; a client may not send them as ids."""
    tool_call_parser: str = "none"
    """Format of tool calls in outputs, by its name in `baton.output_parsing`; "none", or
    "response_template" for the declared one."""
    reasoning_parser: str = "none"
    """Name of the reasoning format; "none" without one."""
    response_template: bytes = b""
    """JSON: the checkpoint's declaration of its outputs; empty if there is none."""
    sampling_defaults: dict[str, int | float] = {}
    """Default sampling parameters of requests, by field of generation_config.json."""
    document_first: bool = False
    """The model's pair template has the document before the query."""
    speech: AnySpeechInfo | None = None
    """Requests for transcripts of a speech-to-text model; None for other models."""
    task_prompts: dict[str, str] = {}
    """Texts that an embedding model reads before its input, by task."""


class MediaInfo(msgspec.Struct, frozen=True, array_like=True):
    """Capabilities of a media preprocessor, sent in its `Hello`."""

    model: str
    modalities: tuple[str, ...] = ()
    """Subset of "image", "video", "audio"; empty for a text-only model."""


class HeldPages(msgspec.Struct, frozen=True, array_like=True):
    """Cached pages of a worker and their hashes; see `baton.kv.page_hashes`."""

    pages: bytes = b""
    """uint32: page numbers"""
    hashes: bytes = b""
    """17 bytes per page: 16 of the block hash, 1 of the page group"""


class Hello(Message, tag="hello", frozen=True):
    """Handshake. client <-> server, when a connection opens and after a restart of either side."""

    service: str
    name: str
    incarnation: int
    """Random 63-bit number, new at every start of the process."""
    version: str
    protocol: int = PROTOCOL
    worker: WorkerInfo | None = None
    tokenizer: TokenizerInfo | None = None
    media: MediaInfo | None = None
    held: HeldPages | None = None
    """Cached pages of a worker, as the scheduler sent them in `PageHashes`."""


class Beat(Message, tag="beat", frozen=True):
    """Heartbeat with progress. client -> server every 0.1 s; the server answers with its own."""

    name: str
    incarnation: int
    progress: int = 0
    """Counter of completed work: steps of a worker, messages of a server."""
    busy: bool = False
    """True if work is waiting or running. Busy without progress is a hang."""


class HelloRequest(Message, tag="hello_request", frozen=True):
    """Ask an unknown peer for its `Hello`. server -> client, in answer to a heartbeat."""

    incarnation: int
    """The server's incarnation."""


class Drain(Message, tag="drain", frozen=True):
    """Take no new work, finish running work, then leave."""

    seconds: float = 30.0
    """Time limit."""


class DrainWorker(Message, tag="drain_worker", frozen=True):
    """Drain a worker; its sequences continue on other workers. operator -> scheduler."""

    name: str
    """Name of the worker."""


class SetRole(Message, tag="set_role", frozen=True):
    """Change the role of a worker; sequences outside the new role move to other workers.

    operator -> scheduler -> worker, which reports the role in later Hellos.
    operator -> supervisor, so that the role survives a restart of the worker.
    """

    name: str
    role: Role


class ProcessDied(Message, tag="process_died", frozen=True):
    """A process of a worker has ended. supervisor -> scheduler."""

    process: str
    """Host and process id, as in `WorkerInfo`."""
    inside: bool
    """It exited because of its own work: an error, or a signal that only its own code causes. False
    for a signal from outside, and for an orderly exit."""


class Resize(Message, tag="resize", frozen=True):
    """Set the number of workers per role. operator -> supervisor."""

    counts: dict[str, int]
    """role -> number of workers"""


class ResizeDone(Message, tag="resize_done", frozen=True):
    """Answer to `Resize` or `SetRole`, once applied. supervisor -> operator."""

    workers: dict[str, str]
    """name -> role of the supervised workers, without those that are leaving"""
    reason: str = ""
    """Why the command was refused; empty on success."""


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
    """Moving average of the step time, dispatch to result, in milliseconds."""
    tokens_per_second: float
    weight_bytes: int
    kv_bytes: int
    pages_cached: int = 0
    """Pages counted in `pages_free` that hold a cached prefix."""
    gap_ms: float = 0.0
    """Moving average of the device's idle time between steps with work waiting, in milliseconds."""
    pull_rate: float = 0.0
    """KV bytes per second received from other workers, during transfers."""
    rank: int = -1
    """Rank under a placement policy that maps requests to ranks; -1 under other policies."""
    model: str = ""
    """Name of the model that it serves."""
    seconds_per_step: float = 0.0
    """Estimated seconds of a step in addition to those of its tokens; both 0 before any
    measurement."""
    seconds_per_token: float = 0.0
    """Estimated seconds of one token of a step."""
    tokens_per_step: int = 0
    """Maximum tokens of one step."""
    expert_balancedness: float = 0.0
    """`ExpertBalance.balancedness` of its expert group, if that balances experts; 0 otherwise."""
    expert_rearrangements: int = 0
    """Number of rearrangements of the experts of its group."""


class ModelStats(msgspec.Struct, frozen=True, array_like=True):
    """One model as its workers report it."""

    name: str
    max_model_len: int
    """Maximum number of tokens of a sequence that every worker of the model supports."""
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    pooling: PoolingInfo | None = None
    """Pooling task of the model; None if it only generates."""
    adapters: tuple[AdapterInfo, ...] = ()
    """Served adapters of the model, by name."""
    paused: bool = False
    """No sequence runs until an operator resumes the model."""
    asleep: bool = False
    """All its workers sleep; the next sequence wakes them."""
    weight_version: str = DEFAULT_VERSION
    """Label of the weights in use."""
    alignment: bool = False
    """Every worker can report where in a recording tokens are; see `Pooling.aligned_from`."""


class RoleStats(msgspec.Struct, frozen=True, array_like=True):
    """Autoscaling metrics of all workers of one role. Times are in seconds."""

    role: str
    ready: int
    """Workers that accept sequences."""
    desired: int
    """Number of workers that would meet every target."""
    queue_seconds: float
    """Waiting time of the oldest sequence that waits for this role, or the time to compute the
    queue, whichever is longer."""
    ttft_seconds: float
    """Moving average of the time from arrival to first token; 0 for the decode role."""
    itl_seconds: float
    """Moving average of the time between two tokens of a sequence; 0 for the prefill role."""
    pressure: dict[str, float]
    """Measured value / target, for "queue", "ttft", "itl", "kv" and "compute"."""


class TransferStats(msgspec.Struct, frozen=True, array_like=True):
    """KV transfers over one transport since the scheduler started."""

    transport: str
    """"none" if the two workers did not agree on a transport."""
    done: int
    """Number of completed transfers."""
    failed: int
    """Number of failed transfers."""
    num_bytes: int
    seconds: float
    """Total duration of the completed transfers."""


class Stats(Message, tag="stats", frozen=True):
    """State of the scheduler and its workers. scheduler -> gateways, a few times a second."""

    incarnation: int
    waiting: int
    waiting_tokens: int
    running: int
    preemptions: int
    finished: int
    tokens: int
    """Tokens sampled since the start."""
    tokens_per_second: float
    uptime: float
    workers: tuple[WorkerStats, ...] = ()
    worker_losses: int = 0
    dropped_frames: int = 0
    stale_results: int = 0
    prompt_tokens: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found in the prefix cache."""
    handoffs: int = 0
    """Running sequences that moved to another worker with their KV."""
    failed_transfers: int = 0
    transferred_tokens: int = 0
    """Tokens whose KV was pulled from another worker."""
    roles: tuple[RoleStats, ...] = ()
    transfers: tuple[TransferStats, ...] = ()
    models: tuple[ModelStats, ...] = ()
    """Models that have a worker, by name."""
    num_drafts: int = 0
    """Rows of steps that verified draft tokens."""
    num_draft_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    """Accepted draft tokens, by their position in the draft."""
    media_encoded: int = 0
    """Media items encoded by encode workers."""
    media_encoded_locally: int = 0
    """Media items encoded by prefill workers."""
    media_shared: int = 0
    """Media items that needed no encoding: of another sequence, or in an encoder cache."""
    media_retried: int = 0
    """Media items that were encoded again because their encode worker was lost."""
    media_pulled: int = 0
    """Transfers of embeddings from encode workers."""
    media_pulls_failed: int = 0
