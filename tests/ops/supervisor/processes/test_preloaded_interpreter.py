"""Services are forked from an interpreter with their imports, and are started without it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks to its parent")
SUPERVISOR = """
import json, os, sys, threading, time
from baton_ops.supervisor.processes import preloaded_interpreter as module
from baton_ops.supervisor.processes.child_process import CHILD_MAIN

def service():
    words = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
    own, modules, variables = os.getpgid(0) == os.getpid(), sys.modules, os.environ
    known = {"arguments": sys.argv[1:], "given": variables.get("GIVEN"), "words": words}
    known |= {"gone": "GONE" not in variables, "parent": os.getppid(), "group": own}
    known |= {"numpy": "numpy" in modules, "threads": variables.get("OPENBLAS_NUM_THREADS")}
    print(json.dumps(known), flush=True)
    raise SystemExit(7)

module.child_main = service
if "threaded" in sys.argv:
    module._import = threading.Thread(target=time.sleep, args=(600,), daemon=True).start
os.environ["GONE"] = "1"
interpreter = module.PreloadedInterpreter.fork()
variables = {n: v for n, v in os.environ.items() if n != "GONE"} | {"GIVEN": "x"}
codes = []
for name in ("gateway", "--version"):
    process = interpreter.start([*CHILD_MAIN, name], variables)
    codes.append((type(process).__name__, process.wait(timeout=120)))
    process.close()
interpreter.close()
process = interpreter.start([*CHILD_MAIN, "--version"], variables)
codes.append((type(process).__name__, process.wait(timeout=120)))
process.close()
print(json.dumps({"pid": os.getpid(), "codes": codes}), flush=True)
"""


def run(*arguments: str) -> list[str]:
    command = [sys.executable, "-c", SUPERVISOR, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.splitlines()


def test_services_are_children_of_the_supervisor_with_an_environment_of_their_own() -> None:
    first, second, version, ended = run()
    supervisor = json.loads(ended)
    assert json.loads(first) == {
        **{"arguments": ["gateway"], "given": "x", "words": ["baton", "gateway"], "gone": True},
        **{"parent": supervisor["pid"], "group": True, "threads": None, "numpy": True},
    }
    assert json.loads(second)["arguments"] == ["--version"]
    assert version.startswith("baton "), "without the interpreter one is started"
    assert supervisor["codes"] == [["ForkedProcess", 7]] * 2 + [["ChildProcess", 0]]


def test_one_that_cannot_fork_is_the_first_service() -> None:
    first, *versions, ended = run("threaded")
    assert json.loads(first)["arguments"] == ["gateway"]
    assert len(versions) == 2 and all(line.startswith("baton ") for line in versions)
    codes = json.loads(ended)["codes"]
    assert codes == [["ForkedProcess", 7], ["ChildProcess", 0], ["ChildProcess", 0]]
