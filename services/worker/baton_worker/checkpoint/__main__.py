"""Print what a checkpoint resolves to: `python -m baton_worker.checkpoint PATH`.

Sizes and backends are those of this machine with the worker's settings from the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.inspect import tree
from baton_worker.checkpoint.task import is_listed, served_task
from baton_worker.config import Config
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import transformers_backend
from baton_worker.spec.hf_config import read_config


def main(arguments: list[str]) -> int:
    """Print the spec of the given path; returns 2 on a usage error, 1 if it cannot be resolved."""
    if len(arguments) != 1:
        print("usage: python -m baton_worker.checkpoint PATH", file=sys.stderr)
        return 2
    try:
        show(Path(arguments[0]))
    except (ModelError, SettingsError) as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def show(path: Path) -> None:
    """Print the tree of a checkpoint; without a spec, whether the transformers backend runs it."""
    config = _config(path)
    name = " ".join(getattr(config, "architectures", None) or [])
    if not is_listed(config) and transformers_backend.refuses(config) is None:
        print(f"{name} has no spec: it would run in the slower code of transformers.")
        return
    spec = served_task(config, path).spec
    settings = Config()
    context = BuildContext.from_config(settings)
    Console().print(tree(name, spec, context, page_size=settings.block_size))


def _config(path: Path) -> SimpleNamespace:
    if path.suffix != ".gguf":
        return read_config(path)
    from baton_worker.checkpoint.gguf.file import GgufFile

    return GgufFile(path).config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
