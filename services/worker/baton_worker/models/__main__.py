"""Print the resolved spec of a checkpoint: `python -m baton_worker.models PATH`."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.pretty import pprint

from baton.errors import ModelError
from baton_worker.models.config import read_config
from baton_worker.models.resolve import resolve


def main(arguments: list[str]) -> int:
    """Print the spec of the one path given; 2 on a usage error, 1 when it cannot be resolved."""
    if len(arguments) != 1:
        print("usage: python -m baton_worker.models PATH", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        if path.suffix == ".gguf":
            from baton_worker.models.gguf import GgufFile

            config = GgufFile(path).config
        else:
            config = read_config(path)
        pprint(resolve(config), expand_all=False)
    except ModelError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
