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
    """The backend of `--weight-transfer-config`; empty if there is none. Raises `ValueError`."""
    if not text:
        return ""
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--weight-transfer-config is not a JSON object: {error}.") from error
    if strange := sorted(given.keys() - {"backend"}):
        raise ValueError(f"--weight-transfer-config has an unknown field '{strange[0]}'.")
    backend, known = given.get("backend", ""), " or ".join(WEIGHT_BACKENDS)
    if backend in _NO_BACKENDS:
        why = _NO_BACKENDS[backend]
        raise ValueError(f"The weight backend {backend} is not served here: {why}. Use {known}.")
    if backend not in WEIGHT_BACKENDS:
        raise ValueError(f"--weight-transfer-config wants a backend: {known}.")
    return backend


def media_adapters(text: str) -> dict[str, str]:
    """Names of adapters by modality, of `--default-mm-loras`; empty for none. Raises
    `ValueError`."""
    if not text:
        return {}
    try:
        given = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--default-mm-loras is not a JSON object of names: {error}.") from error
    if strange := sorted(given.keys() - set(MEDIA)):
        known = ", ".join(MEDIA)
        raise ValueError(f"--default-mm-loras knows {known}, not '{strange[0]}'.")
    return given


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

    host: str = setting("127.0.0.1", "network")
    """Address that HTTP listens on."""
    port: int = setting(8000, "network", ge=0, le=65535)
    """Port that HTTP listens on; 0 picks a free one."""
    grpc_port: int = setting(0, "network", ge=0, le=65535)
    """Port that gRPC listens on, with vLLM's `VllmEngine` protocol; 0 means none."""
    shared_port: bool = setting(False, "network", advanced=True)
    """Other gateways of this machine listen on the same port (SO_REUSEPORT), with the same journal.
    While this one is cut off from the scheduler it sends its clients to them."""
    allowed_hosts: str = setting("", "security")
    """Host names that requests may carry, separated by commas, or *; empty means any, or, when
    HTTP listens on a loopback address, only names of this machine."""
    allowed_origins: str = setting("", "security")
    """Origins whose pages may use this server from a browser (CORS), separated by commas or as a
    JSON list, or *; empty means none but its own."""
    allowed_methods: str = setting("*", "security")
    """Methods that these pages may use."""
    allowed_headers: str = setting("*", "security")
    """Headers that these pages may send."""
    allow_credentials: bool = setting(False, "security")
    """These pages may send cookies, for proxies in front that read them."""
    api_key: str = setting("", "security", repr=False)
    """Keys that clients must send as a bearer token, separated by commas; empty means open."""
    api_key_file: Path | None = setting(None, "security")
    """File of API keys with their tenants, models and limits, in TOML; see
    docs/operations/security.md. It is read again when it changes."""
    admin_api_key: str = setting("", "security", repr=False)
    """Keys of operators, separated by commas, for /metrics, /fleet, /pause and the other routes of
    operators. Where any keys are in use these routes answer no others but those marked `operator`
    in the file."""
    allow_runtime_lora_updating: bool = setting(False, "security")
    """Let operators load and unload adapters while the model serves: /v1/load_lora_adapter and
    /v1/unload_lora_adapter. Workers read the folders that these name."""
    lora_resolver_cache_dir: Annotated[Path | None, AfterValidator(_allowed)] = setting(
        None, "security"
    )
    """Folder with one PEFT folder for each adapter: a name that is not served is loaded from there
    when a request first asks for it. Needs --allow-runtime-lora-updating."""
    default_mm_loras: Annotated[str, AfterValidator(_known_modalities)] = setting("", "model")
    """Adapters of requests with media that name the model alone, by modality, as
    '{"audio": "speech"}'; each is served under its name by --lora-modules. Empty means none."""
    weight_transfer_config: Annotated[str, AfterValidator(_known_backend)] = setting("", "security")
    """Let operators change the weights while the model serves, as vLLM takes it: '{"backend":
    "files"}' or "shared_memory" or "gloo"; empty means no. Workers read what the requests name."""
    reasoning_key: str = setting("", "security", repr=False)
    """Secret, of 16 random characters or more, that encrypts the thinking which clients of the
    Responses API keep; the same for the gateways of several machines. Empty means one that is made
    in the run directory."""
    requests_per_minute: int = setting(0, "limits", ge=0)
    """POST requests that each key may make per minute; 0 means any number. Without keys, all
    clients share one."""
    tokens_per_minute: int = setting(0, "limits", ge=0)
    """Tokens, of prompts and answers together, that each key may use per minute; 0 means any."""
    tokens_per_month: int = setting(0, "limits", ge=0)
    """The same per 30 days."""
    concurrent_choices: int = setting(0, "limits", ge=0)
    """Choices that each key may have in flight at this gateway; 0 means any number."""
    max_body_bytes: int = setting(32 * 1024 * 1024, "limits", ge=1024)
    """Largest request body."""
    mm_tensor_ipc: Literal["auto", "shm", "direct_rpc"] = setting("auto", "network", advanced=True)
    """How pixels reach workers: shm by handles to shared memory, which workers of this host and run
    directory take, and those of other hosts through `bind_pixels`; direct_rpc in the messages of
    the scheduler, to any host; auto is shm where the scheduler is reached through the run directory
    or `bind_pixels` is set."""
    bind_pixels: str = setting("", "network", advanced=True)
    """Address that serves pixels to workers of other hosts, tcp://*:0 for any port; empty serves
    none."""
    advertise_pixels: str = setting("", "network", advanced=True)
    """Address under which workers reach it, when it is not the one that is bound."""
    max_pixel_bytes: int = setting(2 * 1024**3, "limits", advanced=True, ge=1024)
    """Bytes of shared memory for the pixels of requests in flight; requests whose images find no
    room are refused with 503 and Retry-After."""
    max_unfinished_body_bytes: int = setting(256 * 1024 * 1024, "limits", advanced=True, ge=1024)
    """Bytes that all request bodies which are being received may have together, beside the first
    64 KiB of each; more are refused with 503 and Retry-After."""
    max_concurrent_requests: int = setting(1024, "limits", ge=1)
    """Requests in flight; more are refused with 503 and Retry-After."""
    max_choices: int = setting(128, "limits", ge=1, le=128)
    """Largest `n` times number of prompts of one request."""
    request_timeout_seconds: float = setting(600.0, "reliability", gt=0)
    """Seconds that one request may take."""
    deadline_ms: int = setting(0, "reliability", ge=0, le=86_400_000)
    """Milliseconds that a request has if it sends no X-Deadline-Ms; 0 means no deadline."""
    service_wait_seconds: float = setting(2.0, "reliability", advanced=True, ge=0)
    """Seconds that a request waits for a missing tokenizer, scheduler or worker before a 503."""
    failover_wait_seconds: float = setting(30.0, "reliability", advanced=True, ge=0)
    """Seconds that requests in flight wait for the next scheduler when theirs is lost."""
    slow_client_seconds: float = setting(30.0, "reliability", advanced=True, gt=0)
    """A client that reads nothing of its stream for this long is cut off."""
    keep_alive_seconds: float = setting(15.0, "reliability", advanced=True, gt=0)
    """A stream with nothing to say sends a comment this often, so that proxies keep it open."""
    grammar_backend: Annotated[str, TRIALS] = setting(
        "llguidance", "structured output", shared=True
    )
    """Engine that tries grammars before they are admitted: the one that the workers have. xgrammar
    is an extra, and brings torch into a child of the gateway; llguidance does without."""
    journal: Annotated[str, AfterValidator(check_journal)] = setting("", "reliability")
    """Where streams that asked for X-Stream-Durable outlive this process: sqlite, or redis; empty
    means redis where redis_url is set, else sqlite."""
    journal_path: Path | None = setting(None, "reliability")
    """SQLite file of the journal; by default in the run directory."""
    journal_bytes: int = setting(256 * 1024 * 1024, "reliability", advanced=True, ge=1024)
    """Most bytes that the SQLite journal holds; old streams make room for new ones."""
    journal_seconds: float = setting(600.0, "reliability", advanced=True, gt=0)
    """A durable stream can be resumed for this long after its last event."""
    store: Annotated[str, AfterValidator(check_store)] = setting("", "reliability")
    """Where responses and conversations are kept: sqlite, or redis; empty means redis where
    redis_url is set, else sqlite."""
    store_path: Path | None = setting(None, "reliability")
    """SQLite file of the store; by default in the run directory, which `baton serve` removes at its
    end unless it is given."""
    store_bytes: int = setting(1024 * 1024 * 1024, "reliability", advanced=True, ge=1024)
    """Most bytes that the SQLite store holds; old objects make room for new ones."""
    store_seconds: float = setting(2_592_000.0, "reliability", advanced=True, gt=0)
    """What is stored is kept for this long after its last change."""
    unread_stream_seconds: float = setting(30.0, "reliability", advanced=True, ge=0)
    """A durable stream without a reader goes on for this long, then it pauses."""
    worker_hang_seconds: float = setting(5.0, "reliability", advanced=True, shared=True, gt=0)
    """A worker that is busy without progress for this long makes /health false."""
    explained_requests: int = setting(1000, "observability", advanced=True, ge=0, le=1_000_000)
    """Latest requests of which /v1/requests/{id}/explain can tell where their time went."""
    metrics: bool = setting(True, "observability")
    """Serve Prometheus text at /metrics."""
    vllm_metrics: bool = setting(False, "observability")
    """Serve the metrics that vLLM has too under its names, for dashboards that are made for it."""
    playground: bool = setting(True, "observability")
    """Serve the chat page and the fleet view at /."""
    disable_fastapi_docs: bool = setting(False, "security")
    """Serve neither /openapi.json nor /docs."""
    logits_processors: Annotated[str, AfterValidator(check_setting)] = setting("", "model")
    """Logits processors that clients may name in `processors`, separated by commas."""
    batch_path: Path | None = setting(None, "reliability")
    """SQLite file of uploaded files and batches; by default in the run directory, which `baton
    serve` removes at its end."""
    max_batch_requests: int = setting(16, "limits", ge=1, le=1024)
    """Lines of batches that this gateway runs at a time, behind all other requests."""
    max_batch_lines: int = setting(50_000, "limits", ge=1)
    """Most lines of one batch."""
    max_file_bytes: int = setting(200 * 1024 * 1024, "limits", ge=1024)
    """Largest file that may be uploaded."""
    max_audio_clip_filesize_mb: int = setting(25, "limits", ge=1, le=32)
    """Largest recording that may be transcribed, in MiB."""
    max_realtime_sessions: int = setting(64, "limits", ge=0)
    """Sessions of /v1/realtime that may be open; more are refused with 503 and Retry-After."""
    realtime_session_seconds: float = setting(3600.0, "limits", advanced=True, gt=0)
    """A session of /v1/realtime ends after this long; what is committed is still transcribed."""
    realtime_idle_seconds: float = setting(300.0, "limits", advanced=True, gt=0)
    """A session whose client sends nothing for this long ends."""
    realtime_step_seconds: float = setting(0.5, "limits", advanced=True, ge=0.1)
    """Seconds of new audio of a session after which a model that writes while it hears goes on."""
    realtime_window_seconds: float = setting(30.0, "limits", advanced=True, ge=1)
    """Seconds of audio after which a session transcribes what is complete of it, before the
    commit."""
    max_stored_file_bytes: int = setting(10 * 1024**3, "limits", advanced=True, ge=1024)
    """Most bytes of all stored files together; more are refused with 413."""
    strict_fields: bool = setting(False, "model")
    """Refuse unknown request fields instead of ignoring them."""
    max_pooling_inputs: int = setting(2048, "limits", ge=1, le=65536)
    """Most texts that one request may have embedded, scored or classified."""
    max_pooling_tokens: int = setting(300_000, "limits", ge=1)
    """Most tokens of all these texts together."""
    max_pooling_pixel_bytes: int = setting(1024 * 1024 * 1024, "limits", ge=1)
    """Most bytes of their images together, as the model takes them."""
