"""Build the kernels ahead of their first use: `python -m baton_worker.kernels.cpu`.

Builds every library at every level into the package, so that a container image runs on any CPU
without a compiler. With `--native` it builds only the level that this machine runs, tiles tried
out; with `--bench` it measures the products instead.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from baton_worker.config import Config
from baton_worker.kernels.cpu import bench, supported_level
from baton_worker.kernels.cpu.build import SHIPPED, Builder, BuildError, names
from baton_worker.kernels.cpu.isa import LEVELS
from baton_worker.platform import machine


def main(arguments: list[str]) -> int:
    """Build everything, or measure. Exit code 1 if nothing can be built, 2 for misuse."""
    if arguments == ["--bench"]:
        bench.main()
        return 0
    if arguments not in ([], ["--native"]):
        print("usage: python -m baton_worker.kernels.cpu [--native | --bench]", file=sys.stderr)
        return 2
    torch.get_num_threads()
    builder = Builder(Config.load().cxx, SHIPPED)
    try:
        levels = [supported_level(builder)] if arguments else LEVELS
        pairs = [(name, level) for name in names() for level in levels if level is not None]
        with ThreadPoolExecutor(machine.cores()) as pool:
            for library in pool.map(lambda pair: builder.library(*pair), pairs):
                print(library)
    except BuildError as error:
        print(f"The CPU kernels are not built: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
