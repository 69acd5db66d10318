"""`baton serve [MODEL]`: the whole system on this machine, as supervised processes.

Every setting of every service is a flag here (`--max-num-seqs 8`), also with the service as a
prefix (`--worker.max-num-seqs 8`). Settings without a flag and not in the file of `--config` come
from the environment of each service, as if it were started alone.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from baton.checkpoint.hub import resolve, served_name
from baton.errors import BatonError, HubError, SettingsError
from baton.logs import logger, setup
from baton.net.curve import CurveKeys
from baton.net.discovery import directory
from baton.process.lifecycle import (
    EXIT_FAULT,
    EXIT_MODEL,
    EXIT_SETTINGS,
    Lifecycle,
)
from baton.process.segments import SegmentKeeper
from baton.settings import environment
from baton_ops.supervisor import replicas as copies
from baton_ops.supervisor.control_socket import ControlSocket
from baton_ops.supervisor.death_reports import DeathReports
from baton_ops.supervisor.options import (
    Serve,
    commands,
    counts,
    forked_workers,
    group,
    inactivity_limits,
    run_directory,
    serve_config,
    spares,
    variables,
    worker_command,
    worker_limits,
    worker_spare,
    workers,
)
from baton_ops.supervisor.processes.preloaded_interpreter import PreloadedInterpreter
from baton_ops.supervisor.startup import Startup, listening, operator_key
from baton_ops.supervisor.supervisor import TICK_SECONDS, Supervisor
from baton_ops.supervisor.worker_pool import WorkerPool

log = logger(__name__)


def supervise(
    supervisor: Supervisor,
    life: Lifecycle,
    startup: Startup,
    control: ControlSocket,
    deaths: DeathReports,
    console: Console,
    keeper: SegmentKeeper,
) -> int:
    """Supervise the services until the system stops. Returns the exit code."""

    def report(pid: int, code: int) -> None:
        keeper.process_died(pid, code)
        deaths.add(pid, code)

    supervisor.report_to(report)
    supervisor.start()
    while not life.draining and supervisor.fatal_exit is None:
        supervisor.tick()
        control.turn()
        deaths.send()
        if startup.tick(supervisor.restarts()):
            startup.announce_ready(console)
        time.sleep(TICK_SECONDS)
    if supervisor.fatal_exit is None:
        supervisor.drain()
        return 0
    service, code = supervisor.fatal_exit
    log.error("a restart cannot help the %s, see its message above: stopping all", service)
    return code


def run(config: Serve, interpreter: PreloadedInterpreter) -> int:
    """Resolve the model, start everything, run until the end. Returns the exit code."""
    explicit = variables(config)
    explicit |= operator_key(explicit)
    address = listening(explicit)
    explicit["BATON_SERVED_MODEL_NAME"] = served_name(config)
    explicit["BATON_MODEL"] = str(resolve(config))
    life = Lifecycle(config.shutdown_timeout)
    life.watch()
    signal.signal(signal.SIGHUP, lambda number, frame: life.stop())
    with run_directory(config) as folder:
        explicit["BATON_RUN_DIR"] = str(folder)
        explicit["BATON_GATEWAY_PORT"] = str(address.port)
        environ = {**environment(), **explicit, **copies.variables(folder, counts(config))}
        environ.pop("BATON_CONFIG", None)
        supervisor = _supervisor(config, folder, environ, interpreter)
        keeper = SegmentKeeper(folder)
        pool = _worker_pool(config, supervisor, keeper)
        startup, console = Startup(config, address), Console(highlight=False)
        try:
            with (
                ControlSocket(pool, folder) as control,
                _death_reports(config, folder) as deaths,
                keeper,
            ):
                return supervise(supervisor, life, startup, control, deaths, console, keeper)
        finally:
            supervisor.kill()


def _supervisor(
    config: Serve, folder: Path, environ: dict[str, str], interpreter: PreloadedInterpreter
) -> Supervisor:
    return Supervisor(
        commands(config, folder),
        environ,
        config.shutdown_timeout,
        spares(config, folder),
        inactivity_limits(config),
        forked_workers(config),
        workers(config),
        interpreter.start,
    )


def _worker_pool(config: Serve, supervisor: Supervisor, keeper: SegmentKeeper) -> WorkerPool:
    return WorkerPool(
        supervisor,
        workers(config),
        partial(worker_command, config),
        group(config) > 1,
        keeper.end_lease,
        partial(worker_spare, config),
        worker_limits(config),
    )


@contextmanager
def _death_reports(config: Serve, folder: Path) -> Iterator[DeathReports]:
    """Reports to the scheduler of these services, with a worker's keys."""
    folder_keys = config.curve_keys_dir
    keys = None if folder_keys is None else CurveKeys.load(folder_keys, "worker")
    with (
        closing(directory(config.model_copy(update={"run_dir": folder}))) as where,
        closing(DeathReports(where, keys)) as deaths,
    ):
        yield deaths


def main() -> None:
    """Parse the flags, serve, exit with a specific code."""
    try:
        config = serve_config().load(sys.argv[1:])
        # Fork before opening anything that child processes would inherit.
        with closing(PreloadedInterpreter.fork()) as interpreter:
            setup("serve", config.log_level)
            code = run(config, interpreter)
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
