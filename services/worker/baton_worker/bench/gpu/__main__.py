"""`make bench-gpu`, or `python -m baton_worker.bench.gpu`: measure the card of this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from baton.settings import default_environment
from baton_worker.bench.gpu import report


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    made.add_argument("--out", type=Path, default=Path("bench"), help="folder of the JSON")
    made.add_argument("--parts", nargs="+", choices=report.PARTS, default=report.PARTS)
    made.add_argument("--shapes", nargs="+", default=report.SHAPES, help="models of `parts`")
    made.add_argument("--device", default="cuda")
    made.add_argument("--tiny", action="store_true", help="try the code, on any machine")
    return made


def main(arguments: list[str]) -> int:
    """Measure, write one JSON, print where it is; returns the exit code."""
    options = parser().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU that PyTorch can use.")
        print("To try the code: make bench-gpu ARGS='--tiny --device cpu'")
        return 2
    if options.device == "cpu":  # Kernels are not imported yet.
        default_environment("TRITON_INTERPRET", "1")
    with tempfile.TemporaryDirectory() as folder:
        found = report.measure(
            torch.device(options.device),
            Path(folder),
            options.parts,
            ["tiny"] if options.tiny else options.shapes,
            tiny=options.tiny,
        )
    print(f"wrote {report.write(found, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
