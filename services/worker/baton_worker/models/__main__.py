"""Print what a checkpoint resolves to: `python -m baton_worker.models PATH`.

Sizes and backends are those of this machine with the worker's settings from the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.pretty import pprint

from baton.errors import ModelError, SettingsError
from baton_worker.config import Config
from baton_worker.models.config import read_config
from baton_worker.models.serving import serving
from baton_worker.models.spec import Encoder
from baton_worker.models.tree import tree
from baton_worker.resolution import place


def main(arguments: list[str]) -> int:
    """Print the spec of the one path given; 2 on a usage error, 1 when it cannot be resolved."""
    if len(arguments) != 1:
        print("usage: python -m baton_worker.models PATH", file=sys.stderr)
        return 2
    try:
        show(Path(arguments[0]))
    except (ModelError, SettingsError) as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def show(path: Path) -> None:
    """Print the tree of a decoder, the fields of an encoder."""
    config = _config(path)
    spec = serving(config, path).spec
    if isinstance(spec, Encoder):
        pprint(spec, expand_all=False)
        return
    placement = place(Config())
    name = " ".join(getattr(config, "architectures", None) or [])
    Console().print(
        tree(name, spec, device=placement.device, dtype=placement.dtype, codes=placement.codes)
    )


def _config(path: Path) -> SimpleNamespace:
    if path.suffix != ".gguf":
        return read_config(path)
    from baton_worker.models.gguf import GgufFile

    return GgufFile(path).config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
