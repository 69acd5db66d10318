"""The real services around their workers, the wires between them, and the hand that breaks both."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from baton.net.discovery import StaticDirectory, socket_path
from baton.net.topology import (
    FLEET,
    FRONTEND,
    MEDIA,
    TOKENIZE,
)
from baton.process.segments import SegmentKeeper
from baton.settings import SERVICES, Settings, environment
from baton_ops.supervisor import replicas
from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.death_reports import DeathReports
from baton_ops.supervisor.liveness import HUNG_SECONDS
from baton_ops.supervisor.options import CHILD_MAIN, WITH_SPARE
from baton_ops.supervisor.process_state import STOPPED_SECONDS
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.spare import ForkedServices
from baton_ops.supervisor.supervisor import TICK_SECONDS, Supervisor
from tests.chaos.faults import Fault, Kind, draw
from tests.chaos.wires import Wires, free_port
from tests.fakes.hanging_service import HANG
from tests.support.preloaded_interpreter import FORKS, preloaded_interpreter

_LEASH = (sys.executable, "-m", "tests.fakes.hanging_service")
"""How a service is run so that it can be made to hang."""
_START_SECONDS = 120.0
_LED = {TOKENIZE: "--tokenizer-address", MEDIA: "--mm-preprocess-address",
        FRONTEND: "--scheduler-address"}  # fmt: skip
"""The links of a gateway, and the flag by which it is led to its wires."""
_SIGNALS: dict[Kind, signal.Signals] = {
    "kill": signal.SIGKILL,
    "kill_pair": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "hang": HANG,
}
_SETTLE_SECONDS = 120.0
"""How long the last requests and the workers that were away may take to come to rest."""


@dataclass(frozen=True)
class Crew:
    """What the workers are: without a model, or real ones, in roles."""

    both: int = 3
    prefill: int = 0
    decode: int = 0
    real: bool = False
    vocab: int = 49152
    step_ms: float = 20.0
    transports: str = "tcp"
    ranks: int = 1

    def roles(self) -> dict[str, str]:
        """Role of every worker by its name."""
        counts = {"both": self.both, "prefill": self.prefill, "decode": self.decode}
        return {f"{role}{n}": role for role, count in counts.items() for n in range(count)}

    def command(self, name: str, role: str) -> list[str]:
        """How a worker is started."""
        if self.real:
            return [*CHILD_MAIN, "worker", "--name", name, "--role", role, *self._exact()]
        fake = [sys.executable, "-m", "tests.fakes.hash_worker", "--model-name", "chaos"]
        fake += ["--vocab-size", str(self.vocab), "--step-ms", str(self.step_ms)]
        return [*fake, "--max-num-seqs", "128", "--name", name, "--supervised"]

    def forked(self, names: Sequence[str]) -> list[ForkedServices]:
        """What the workers of these names are forked from, as under `baton serve`; nothing without
        a model, and for workers of several ranks."""
        if not self.real or self.ranks > 1:
            return []
        return [ForkedServices(names, [*CHILD_MAIN, "--fork-server", "worker", *self._exact()])]

    def _exact(self) -> list[str]:
        """Flags of all real workers."""
        flags = ["--exact", "--dtype", "float32", "--threads", str(self.ranks)]
        flags += ["--num-gpu-blocks-override", "512", "--kv-transports", self.transports]
        # For TCP, on this machine.
        return [*flags, "--tensor-parallel-size", str(self.ranks), "--trusted-network"]


@dataclass(frozen=True)
class Front:
    """How many gateways and tokenizers there are, and how what dies is replaced."""

    gateways: int = 1
    tokenizers: int = 1
    spares: bool = True
    forks: bool = True
    stopped_seconds: float = STOPPED_SECONDS
    hung_seconds: float = HUNG_SECONDS
    """How long a service may be stopped, and hang, before it is killed; 0 is for ever."""

    def counts(self) -> dict[str, int]:
        """Processes of each service that is no worker."""
        several = {"gateway": self.gateways, "tokenizer": self.tokenizers}
        return {s: several.get(s, 1) for s in SERVICES if s != "worker"}

    def kept(self, started: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """How spares are started, by what follows the control socket of each process."""
        spared = {n: own for n, own in started.items() if self.spares and own[0] in WITH_SPARE}
        return {name: [*_LEASH, "--spare", *own] for name, own in spared.items()}

    def inactivity_limits(self) -> dict[str, InactivityLimits]:
        """How long each may do nothing."""
        names = [n for s, count in self.counts().items() for n in replicas.names(s, count)]
        longest = InactivityLimits(self.stopped_seconds or math.inf, self.hung_seconds or math.inf)
        return dict.fromkeys(names, longest)


class System:
    """Gateway, tokenizer, mm-preprocess, scheduler and workers as processes, joined by wires.

    Life cycle: a context; `ready` waits for the first answer; `hurt` breaks one process or link.
    """

    def __init__(
        self, folder: Path, port: int, crew: Crew, front: Front, given: Mapping[str, str]
    ) -> None:
        """`given`: more environment of all services."""
        self.url = f"http://127.0.0.1:{port}"
        self.faults: list[Fault] = []
        self._crew, self._front = crew, front
        self._run = folder / "run"
        self._run.mkdir(mode=0o700)
        self._ends = self._gateway_ends() | self._worker_ends()
        self._wires = Wires(self._run, self._ends)
        counts = front.counts()
        started = replicas.flags(self._run, counts)
        for name in replicas.names("gateway", front.gateways):
            started[name] += self._led(name)
        commands = {name: [*_LEASH, *own] for name, own in started.items()}
        workers = {f"worker#{n}": self._worker(n, r) for n, r in crew.roles().items()}
        own = {
            "BATON_SERVED_MODEL_NAME": "chaos",
            "BATON_RUN_DIR": str(self._run),
            "BATON_GATEWAY_PORT": str(port),
            "BATON_SCHEDULER_LOCAL_PREFILL_MAX_TOKENS": "0",
            **replicas.variables(self._run, counts),
        }
        self._supervisor = Supervisor(
            commands | workers,
            {**environment(), **own, **given},
            5.0,
            front.kept(started),
            front.inactivity_limits(),
            crew.forked(list(workers)) if front.forks else [],
            start=preloaded_interpreter().start if FORKS else ChildProcess,
        )
        self._keeper = SegmentKeeper(self._run)
        self._deaths = DeathReports(StaticDirectory(Settings(run_dir=self._run)))
        self._supervisor.report_to(self._died)
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    def _gateway_ends(self) -> dict[str, str]:
        """The wires of each gateway, and the addresses at their far ends: one to every server."""
        servers = {f"{MEDIA.name}#{{}}": socket_path(self._run, MEDIA)}
        servers[f"{FRONTEND.name}#{{}}"] = socket_path(self._run, FRONTEND)
        count = self._front.tokenizers
        found = replicas.tokenizer_addresses(self._run, count) if count > 1 else {}
        found = found or {"tokenizer": socket_path(self._run, TOKENIZE)}
        servers |= {f"{TOKENIZE.name}#{{}}>{name}": address for name, address in found.items()}
        gateways = replicas.names("gateway", self._front.gateways)
        return {wire.format(g): there for g in gateways for wire, there in servers.items()}

    def _led(self, gateway: str) -> list[str]:
        """The flags that lead a gateway to its wires."""
        led = []
        for link, flag in _LED.items():
            own = [n for n in self._wires.names if re.match(rf"{link.name}#{gateway}(>|$)", n)]
            led += [flag, ",".join(map(self._wires.address, own))]
        return led

    def _worker_ends(self) -> dict[str, str]:
        """The same of the workers: one to the scheduler, and one to the pages of each rank, for
        which TCP is what they have between hosts."""
        ends = {}
        for name in self._crew.roles():
            ends[f"{FLEET.name}#{name}"] = socket_path(self._run, FLEET)
            if self._crew.real:
                for rank in range(self._crew.ranks):
                    ends[f"pages#{name}/{rank}"] = f"tcp://127.0.0.1:{free_port()}"
        return ends

    def _worker(self, name: str, role: str) -> list[str]:
        command = self._crew.command(name, role)
        command += ["--fleet-address", self._wires.address(f"{FLEET.name}#{name}")]
        if not self._crew.real:
            return command
        wires = [f"pages#{name}/{rank}" for rank in range(self._crew.ranks)]
        command += ["--bind-kv", ",".join(self._ends[wire] for wire in wires)]
        return [*command, "--advertise-kv", ",".join(map(self._wires.address, wires))]

    def __enter__(self) -> Self:
        self._wires.__enter__()
        self._keeper.__enter__()
        self._supervisor.start()
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._watching.join()
        self._supervisor.kill()
        self._deaths.close()
        self._keeper.__exit__(kind, value, trace)
        self._wires.__exit__(kind, value, trace)

    def _died(self, pid: int, code: int) -> None:
        self._keeper.process_died(pid, code)
        self._deaths.add(pid, code)

    def _watch(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            self._supervisor.tick()
            self._deaths.send()

    def ready(self) -> None:
        """Wait until everybody is there."""
        if self._wait(self._whole, _START_SECONDS):
            return
        raise TimeoutError("the system does not become ready")

    def _whole(self) -> bool:
        names = {w["name"] for w in self._workers() if w["state"] == "ready"}
        answers = httpx.get(f"{self.url}/health/ready", timeout=2).status_code == 200
        return answers and names == set(self._crew.roles()) and self._all_gateways()

    def _all_gateways(self) -> bool:
        """Whether every gateway is there: each new connection comes to any of them."""
        wanted, met = self._front.gateways, set[str]()
        for _ in range(10 * wanted if wanted > 1 else 0):
            services = httpx.get(f"{self.url}/fleet", timeout=5).json()["services"]
            met |= {s["name"] for s in services if s["service"] == "gateway"}
        return wanted == 1 or len(met) == wanted

    def _workers(self) -> list[Mapping[str, int]]:
        found: list[Mapping[str, int]] = httpx.get(f"{self.url}/fleet", timeout=5).json()["workers"]
        return found

    def _wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if holds():
                    return True
            except (httpx.TransportError, KeyError):  # The gateway is on its way.
                pass
            time.sleep(0.1)
        return False

    def hurt(self, chance: random.Random, kinds: Sequence[Kind]) -> Fault | None:
        """Break something; None when what was drawn is broken just now."""
        processes, now = sorted(self._supervisor.children), time.monotonic()
        fault = draw(chance, kinds, processes, self._wires.names, now)
        if any(f.target == fault.target and f.ended > now for f in self.faults):
            return None
        signalled = fault.targets[0] in processes
        if not (self._signal(fault) if signalled else self._order(fault)):
            return None
        self.faults.append(fault)
        return fault

    def _signal(self, fault: Fault) -> bool:
        processes = [self._supervisor.children[name].process for name in fault.targets]
        running = [process for process in processes if process is not None]
        if len(running) < len(processes):
            return False
        for process in running:
            os.kill(process.pid, _SIGNALS[fault.kind])
            if fault.kind == "stop":
                threading.Timer(fault.seconds, _go_on, (process.pid,)).start()
        return True

    def _order(self, fault: Fault) -> bool:
        self._wires.order(fault.target, fault.kind)
        if fault.kind != "break":
            last = "break" if fault.severed else "heal"
            again = threading.Timer(fault.seconds, self._wires.order, (fault.target, last))
            again.daemon = True
            again.start()
        return True

    def leaked(self) -> int:
        """Pages that are held although nothing runs, once everybody is back; -1 if they do not
        come back."""
        self._wait(lambda: self._whole() and not self._held(), _SETTLE_SECONDS)
        return self._held() if self._wait(self._whole, 1.0) else -1

    def handoffs(self) -> int:
        """Sequences that have changed their worker since the scheduler was last started."""
        return int(httpx.get(f"{self.url}/fleet", timeout=5).json()["handoffs"])

    def _held(self) -> int:
        return sum(w["pages_total"] - w["pages_free"] for w in self._workers())


def _go_on(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:  # It was killed meanwhile.
        return
