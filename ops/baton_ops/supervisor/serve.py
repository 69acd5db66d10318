"""`baton serve [MODEL]`: the whole system on this machine, as supervised processes.

Every setting of every service is a flag here (`--max-num-seqs 8`), also with its service in front
(`--worker.max-num-seqs 8`). What is not given as a flag or in the file of `--config` comes from the
environment of each service, as if it had been started alone.
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
    worker_spare,
    workers,
)
from baton_ops.supervisor.processes.preloaded_interpreter import PreloadedInterpreter
from baton_ops.supervisor.startup import Startup, listening
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
    """Look after the services until someone says stop. Returns the exit code."""

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
        whole.pop("BATON_CONFIG", None)
        supervisor = Supervisor(
            commands(config, folder),
            whole,
            config.shutdown_timeout,
            spares(config, folder),
            inactivity_limits(config),
            forked_workers(config),
            workers(config),
            interpreter.start,
        )
        keeper = SegmentKeeper(folder)
        pool = WorkerPool(
            supervisor,
            workers(config),
            partial(worker_command, config),
            group(config) > 1,
            keeper.end_lease,
            partial(worker_spare, config),
        )
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
    """Read the flags, serve, exit with a telling code."""
    try:
        config = serve_config().load(sys.argv[1:])
        # Before anything is opened or watched that its processes would share.
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
