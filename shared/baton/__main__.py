"""The `baton` command: a verb, then that verb's own flags."""

from __future__ import annotations

import difflib
import os
import runpy
import signal
import sys
from importlib.util import find_spec

from baton import __version__
from baton.errors import SettingsError
from baton.process import gc_tuning
from baton.process.lifecycle import fail
from baton.settings import SERVICES, environment

_TOOLS = {
    "serve": "run the whole system on this machine",
    "chat": "chat with a running server in the terminal",
    "smoke": "ask a running server some questions and check its answers",
    "bench": "measure a server; also bench scaling, bench images, bench engine and bench page",
    "peers": "measure Baton, vLLM and llama.cpp in turn, on the same weights",
    "eval": "score English and Chinese texts with a server (eval nll)",
    "run-batch": "answer a file of requests in OpenAI's batch format",
    "quantize": "round the weights of a checkpoint and write one that loads as it is",
    "parse": "split a model's output into reasoning, content and tool calls",
    "fleet": "show the workers, change their roles (fleet role) or numbers (fleet scale)",
    "drain": "move the sequences of a worker to others, then end it",
    "replay": "reproduce a recorded scheduler run, decision by decision",
    "device-keeper": "hold the memory of a GPU's workers (baton serve starts it)",
    "keys": "create the keys that encrypt the links between hosts",
    "settings": "print every setting, or write the generated pages",
    "topology": "print the links between the services as a Mermaid diagram",
    "matrix": "write SUPPORT.md from the last full test run",
}

_USAGE = """usage: baton VERB [flags]

`baton serve MODEL` starts a server, and `baton chat` talks to it. `baton VERB --help` lists the
flags of a verb."""
_PARTS = {
    ("bench", "serve"): "baton_ops.bench.serve",
    ("bench", "engine"): "baton_worker.bench",
    ("bench", "scaling"): "baton_ops.bench.scaling",
    ("bench", "images"): "baton_ops.bench.image_costs",
    ("bench", "page"): "baton_ops.bench.page",
    ("eval", "nll"): "baton_ops.quality.nll",
    ("fleet", "role"): "baton_ops.commands.role",
    ("fleet", "scale"): "baton_ops.commands.scale",
}
"""Verbs of two words; the first word alone means the first of them."""
_ELSEWHERE = {
    "serve": "baton_ops.supervisor.serve",
    "bench": "baton_ops.bench.serve",
    "peers": "baton_ops.bench.peers",
    "eval": "baton_ops.quality.nll",
    "run-batch": "baton_ops.commands.run_batch",
    "quantize": "baton_worker.quantize",
    "device-keeper": "baton_worker.device_keeper",
    "matrix": "baton_ops.support_matrix.write",
}
"""Verbs whose module is not `baton_ops.commands.<verb>`."""


def usage() -> str:
    """The help text."""
    rows = [f"  {verb:<14} {text}" for verb, text in _TOOLS.items()]
    rows += [f"  {service:<14} run the {service} service alone" for service in SERVICES]
    return f"{_USAGE}\n\n" + "\n".join(rows)


def _module(verb: str) -> str | None:
    if verb in SERVICES:
        return "baton_" + verb.replace("-", "_")
    return _ELSEWHERE.get(verb, f"baton_ops.commands.{verb}") if verb in _TOOLS else None


def main() -> None:
    """Find the module of the verb by its name and run it: no service is imported by name here."""
    _check_text()
    verb = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if verb in {"-h", "--help", "help"}:
        print(usage())
        return
    if verb in {"-V", "--version"}:
        print(f"baton {__version__}")
        return
    words = 2 if tuple(sys.argv[1:3]) in _PARTS else 1
    module = _PARTS[verb, sys.argv[2]] if words == 2 else _module(verb)
    if module is None:
        near = difflib.get_close_matches(verb, [*_TOOLS, *SERVICES], n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        fail("baton", SettingsError(f"unknown verb '{verb}'. {hint}`baton --help` lists all."))
    if find_spec(module.partition(".")[0]) is None:
        hint = "pip install 'baton-serve[all]'"
        fail("baton", SettingsError(f"'{verb}' is not installed here: {hint}"))
    sys.argv = [" ".join(["baton", *sys.argv[1 : 1 + words]]), *sys.argv[1 + words :]]
    if verb in SERVICES:
        gc_tuning.pause()  # Restored by `baton.process.lifecycle.main`.
    _run(module)


def _check_text() -> None:
    """End with a sentence if an argument or a variable of Baton is not UTF-8: names and paths are
    sent in messages. The sentence has no value, which may be a key."""
    words = {f"argument {number}": word for number, word in enumerate(sys.argv[1:], 1)}
    words |= {name: value for name, value in environment().items() if name.startswith("BATON_")}
    for name, word in words.items():
        try:
            word.encode()
        except UnicodeEncodeError:
            fail("baton", SettingsError(f"{name} is not in UTF-8."))


def _run(module: str) -> None:
    """Run the module. A reader that closes its output early (`| head`) ends it without a
    traceback."""
    try:
        # `alter_sys`: settings read the docstrings and annotations of their module from
        # `sys.modules`.
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except BrokenPipeError:
        _forget_output()
        sys.exit(128 + signal.SIGPIPE)
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_output()
        raise


def _forget_output() -> None:
    """Discard unwritten output, so that the interpreter does not try to flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
