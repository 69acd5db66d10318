"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, ValidationInfo

from baton.settings import Settings, setting
from baton.structured_output.engines import TRIALS
from baton_gateway.durable import check_journal, check_store
from baton_gateway.generation.processor_registry import check_setting

WEIGHT_BACKENDS = ("files", "shared_memory", "gloo")
MEDIA = ("image", "video", "audio")
"""Modalities of media."""
_NO_BACKENDS = {
    "nccl": "it is a group of GPUs with the trainer, and gloo is one of processes",
    "sparse_nccl": "it is a group of GPUs with the trainer, and gloo is one of processes",
    "ipc": "it is memory of a GPU that the trainer shares",
    "sharded_rdt": "it is memory of GPUs that a Ray cluster shares",
}
"""vLLM's backends without a counterpart, with the reason."""


def weight_backend(text: str) -> str:
    """The backend of `--weight-transfer-config`; empty without one. Raises `ValueError`."""
    if not text:
        return ""
    try:
        fields = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--weight-transfer-config is not a JSON object: {error}.") from error
    if strange := sorted(fields.keys() - {"backend"}):
        raise ValueError(f"--weight-transfer-config has an unknown field '{strange[0]}'.")
    backend, backends = fields.get("backend", ""), " or ".join(WEIGHT_BACKENDS)
    if backend in _NO_BACKENDS:
        why = _NO_BACKENDS[backend]
        raise ValueError(f"The weight backend {backend} is not served here: {why}. Use {backends}.")
    if backend not in WEIGHT_BACKENDS:
        raise ValueError(f"--weight-transfer-config wants a backend: {backends}.")
    return backend


def media_adapters(text: str) -> dict[str, str]:
    """Adapter names by modality, of `--default-mm-loras`; empty for none. Raises `ValueError`."""
    if not text:
        return {}
    try:
        adapters = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--default-mm-loras is not a JSON object of names: {error}.") from error
    if strange := sorted(adapters.keys() - set(MEDIA)):
        modalities = ", ".join(MEDIA)
        raise ValueError(f"--default-mm-loras knows {modalities}, not '{strange[0]}'.")
    return adapters


def _allowed(folder: Path | None, info: ValidationInfo) -> Path | None:
    if folder is not None and not info.data.get("allow_runtime_lora_updating", True):
        raise ValueError("add --allow-runtime-lora-updating")
    return folder


def _known_backend(text: str) -> str:
    weight_backend(text)
    return text


def _known_modalities(text: str) -> str:
    media_adapters(text)
    return text


class Config(Settings, prefix="gateway"):
    """HTTP, limits and deadlines."""

    host: str = setting("127.0.0.1", "network", min_length=1)
    """Address that HTTP listens on."""
    port: int = setting(8000, "network", ge=0, le=65535)
    """Port that HTTP listens on; 0 picks a free one."""
    grpc_port: int = setting(0, "network", ge=0, le=65535)
    """Port that gRPC listens on, with vLLM's `VllmEngine` protocol; 0 means none."""
    shared_port: bool = setting(False, "network", advanced=True)
    """Other gateways of this machine listen on the same port (SO_REUSEPORT), with the same journal.
    While this one has no scheduler, it redirects its clients to them."""
    allowed_hosts: str = setting("", "security")
    """Host names that requests may carry, separated by commas, or * for any; empty means only names
    of this machine if HTTP listens on a loopback address, and any otherwise."""
    allowed_origins: str = setting("", "security")
    """Origins whose pages may use this server from a browser (CORS), separated by commas or as a
    JSON list, or *; empty means only its own page."""
    allowed_methods: str = setting("*", "security")
    """Methods that pages of --allowed-origins may use."""
    allowed_headers: str = setting("*", "security")
    """Headers that pages of --allowed-origins may send."""
    allow_credentials: bool = setting(False, "security")
    """Pages of --allowed-origins may send cookies, for proxies that authenticate by them."""
    api_key: str = setting("", "security", repr=False)
    """Keys that clients must send as a bearer token, separated by commas; empty means that no key
    is needed."""
    api_key_file: Path | None = setting(None, "security")
    """File of API keys with their tenants, models and limits, in TOML; see
    docs/operations/security.md. It is reloaded when it changes."""
    admin_api_key: str = setting("", "security", repr=False)
    """Keys of operators, separated by commas, for /metrics, /fleet, /pause and the other operator
    routes. If any keys are configured, these routes accept only these keys and those marked
    `operator` in the file."""
    allow_runtime_lora_updating: bool = setting(False, "security")
    """Let operators load and unload adapters at run time: /v1/load_lora_adapter and
    /v1/unload_lora_adapter. Workers read the folders that these requests name."""
    lora_resolver_cache_dir: Annotated[Path | None, AfterValidator(_allowed)] = setting(
        None, "security"
    )
    """Folder with one PEFT folder per adapter: a name that is not served is loaded from there when
    a request first uses it. Needs --allow-runtime-lora-updating."""
    default_mm_loras: Annotated[str, AfterValidator(_known_modalities)] = setting("", "model")
    """Default adapters of requests with media that name only the model, by modality, as '{"audio":
    "speech"}'; --lora-modules serves each under its name. Empty means none."""
    weight_transfer_config: Annotated[str, AfterValidator(_known_backend)] = setting("", "security")
    """Let operators change weights at run time, in vLLM's format: '{"backend": "files"}' or
    "shared_memory" or "gloo"; empty means no. Workers read the sources that the requests name."""
    reasoning_key: str = setting("", "security", repr=False)
    """Secret of at least 16 random characters that encrypts thinking stored by clients of the
    Responses API; must be the same on all gateways. Empty means a secret created in the run
    directory."""
    requests_per_minute: int = setting(0, "limits", ge=0)
    """POST requests per minute of each key; 0 means no limit. Without keys, all clients share one
    limit."""
    tokens_per_minute: int = setting(0, "limits", ge=0)
    """Tokens per minute of each key, prompts and answers together; 0 means no limit."""
    tokens_per_month: int = setting(0, "limits", ge=0)
    """Tokens per 30 days of each key, prompts and answers together; 0 means no limit."""
    concurrent_choices: int = setting(0, "limits", ge=0)
    """Choices in flight at this gateway of each key; 0 means no limit."""
    max_body_bytes: int = setting(32 * 1024 * 1024, "limits", ge=1024)
    """Maximum bytes of a request body."""
    mm_tensor_ipc: Literal["auto", "shm", "direct_rpc"] = setting("auto", "network", advanced=True)
    """How pixels reach workers: shm by handles to shared memory, which workers of this host and run
    directory map, and workers of other hosts fetch through `bind_pixels`; direct_rpc in the
    scheduler's messages, to any host; auto is shm if the scheduler is reached through the run
    directory or `bind_pixels` is set."""
    bind_pixels: str = setting("", "network", advanced=True)
    """Address that serves pixels to workers of other hosts, tcp://*:0 for any port; empty serves
    none."""
    advertise_pixels: str = setting("", "network", advanced=True)
    """Address at which workers reach `bind_pixels`, if it differs from the bound one."""
    max_pixel_bytes: int = setting(2 * 1024**3, "limits", advanced=True, ge=1024)
    """Bytes of shared memory for the pixels of requests in flight; requests beyond it are refused
    with 503 and Retry-After."""
    max_unfinished_body_bytes: int = setting(256 * 1024 * 1024, "limits", advanced=True, ge=1024)
    """Bytes of all request bodies that are being received, besides the first 64 KiB of each; more
    are refused with 503 and Retry-After."""
    max_concurrent_requests: int = setting(1024, "limits", ge=1)
    """Requests in flight; more are refused with 503 and Retry-After."""
    max_choices: int = setting(128, "limits", ge=1, le=128)
    """Maximum of `n` times the number of prompts of one request."""
    request_timeout_seconds: float = setting(600.0, "reliability", gt=0)
    """Seconds that one request may take."""
    deadline_ms: int = setting(0, "reliability", ge=0, le=86_400_000)
    """Deadline in milliseconds of requests without X-Deadline-Ms; 0 means none."""
    service_wait_seconds: float = setting(2.0, "reliability", advanced=True, ge=0)
    """Seconds that a request waits for a missing tokenizer, scheduler or worker before it fails
    with 503."""
    failover_wait_seconds: float = setting(30.0, "reliability", advanced=True, ge=0)
    """Seconds that requests in flight wait for a new scheduler after theirs was lost."""
    slow_client_seconds: float = setting(30.0, "reliability", advanced=True, gt=0)
    """A client that does not read its answer, streamed or not, for this long is disconnected."""
    keep_alive_seconds: float = setting(15.0, "reliability", advanced=True, gt=0)
    """An idle stream sends a comment this often, so that proxies keep it open."""
    grammar_backend: Annotated[str, TRIALS] = setting(
        "llguidance", "structured output", shared=True
    )
    """Engine that validates grammars before admission; must be that of the workers. xgrammar is an
    extra that loads torch into a child process of the gateway; llguidance does not need it."""
    journal: Annotated[str, AfterValidator(check_journal)] = setting("", "reliability")
    """Where streams with X-Stream-Durable are recorded: sqlite or redis; empty means redis if
    redis_url is set, else sqlite."""
    journal_path: Path | None = setting(None, "reliability")
    """SQLite file of the journal; by default in the run directory."""
    journal_bytes: int = setting(256 * 1024 * 1024, "reliability", advanced=True, ge=1024)
    """Maximum bytes of the SQLite journal; the oldest streams are deleted beyond it."""
    journal_seconds: float = setting(600.0, "reliability", advanced=True, gt=0)
    """A durable stream can be resumed for this long after its last event."""
    store: Annotated[str, AfterValidator(check_store)] = setting("", "reliability")
    """Where responses and conversations are stored: sqlite or redis; empty means redis if redis_url
    is set, else sqlite."""
    store_path: Path | None = setting(None, "reliability")
    """SQLite file of the store; by default in the run directory, which `baton serve` deletes at its
    end unless it is configured."""
    store_bytes: int = setting(1024 * 1024 * 1024, "reliability", advanced=True, ge=1024)
    """Maximum bytes of the SQLite store; the oldest objects are deleted beyond it."""
    store_seconds: float = setting(2_592_000.0, "reliability", advanced=True, gt=0)
    """Stored objects are kept for this long after their last change."""
    unread_stream_seconds: float = setting(30.0, "reliability", advanced=True, ge=0)
    """A durable stream without a reader continues for this long, then pauses."""
    worker_hang_seconds: float = setting(5.0, "reliability", advanced=True, shared=True, gt=0)
    """/health fails if a worker is busy without progress for this long."""
    explained_requests: int = setting(1000, "observability", advanced=True, ge=0, le=1_000_000)
    """Number of recent requests that /v1/requests/{id}/explain covers."""
    metrics: bool = setting(True, "observability")
    """Serve Prometheus text at /metrics."""
    vllm_metrics: bool = setting(False, "observability")
    """Also serve metrics under vLLM's names, for its dashboards."""
    playground: bool = setting(True, "observability")
    """Serve the chat page and the fleet view at /."""
    disable_fastapi_docs: bool = setting(False, "security")
    """Disable /openapi.json and /docs."""
    logits_processors: Annotated[str, AfterValidator(check_setting)] = setting("", "model")
    """Logits processors that clients may name in `processors`, separated by commas."""
    batch_path: Path | None = setting(None, "reliability")
    """SQLite file of uploaded files and batches; by default in the run directory, which `baton
    serve` deletes at its end."""
    max_batch_requests: int = setting(16, "limits", ge=1, le=1024)
    """Batch lines that this gateway runs concurrently, after all other requests."""
    max_batch_lines: int = setting(50_000, "limits", ge=1)
    """Maximum lines of one batch."""
    max_file_bytes: int = setting(200 * 1024 * 1024, "limits", ge=1024)
    """Maximum bytes of an uploaded file."""
    max_audio_clip_filesize_mb: int = setting(25, "limits", ge=1, le=32)
    """Maximum size of a recording for transcription, in MiB."""
    max_realtime_sessions: int = setting(64, "limits", ge=0)
    """Maximum open sessions of /v1/realtime; more are refused with 503 and Retry-After."""
    realtime_session_seconds: float = setting(3600.0, "limits", advanced=True, gt=0)
    """A session of /v1/realtime ends after this long; committed audio is still transcribed."""
    realtime_idle_seconds: float = setting(300.0, "limits", advanced=True, gt=0)
    """A session whose client sends nothing for this long ends."""
    realtime_step_seconds: float = setting(0.5, "limits", advanced=True, ge=0.1)
    """Seconds of new audio of a session after which a streaming speech model continues."""
    realtime_window_seconds: float = setting(30.0, "limits", advanced=True, ge=1)
    """Seconds of audio after which a session transcribes its complete chunks before the commit."""
    max_stored_file_bytes: int = setting(10 * 1024**3, "limits", advanced=True, ge=1024)
    """Maximum bytes of all stored files; more are refused with 413."""
    strict_fields: bool = setting(False, "model")
    """Refuse unknown request fields instead of ignoring them."""
    max_pooling_inputs: int = setting(2048, "limits", ge=1, le=65536)
    """Maximum texts per embedding, scoring or classification request."""
    max_pooling_tokens: int = setting(300_000, "limits", ge=1)
    """Maximum tokens of all texts of an embedding, scoring or classification request."""
    max_pooling_pixel_bytes: int = setting(1024 * 1024 * 1024, "limits", ge=1)
    """Maximum bytes of the preprocessed images of an embedding, scoring or classification
    request."""
