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
    result = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    result.add_argument("--out", type=Path, default=Path("bench"), help="folder of the JSON")
    result.add_argument("--parts", nargs="+", choices=report.PARTS, default=report.PARTS)
    result.add_argument("--shapes", nargs="+", default=report.SHAPES, help="models of `parts`")
    result.add_argument("--device", help="cuda; with --tiny cpu, on a machine without a GPU")
    result.add_argument("--tiny", action="store_true", help="try the code, on any machine")
    return result


def main(arguments: list[str]) -> int:
    """Measure, write one JSON, print where it is; returns the exit code."""
    options = parser().parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    device = options.device or ("cpu" if options.tiny and not has_gpu else "cuda")
    if device == "cuda" and not has_gpu:
        print("There is no GPU that PyTorch can use.")
        print("To try the code: make bench-gpu ARGS=--tiny")
        return 2
    if device == "cpu":  # Kernels are not imported yet.
        default_environment("TRITON_INTERPRET", "1")
    with tempfile.TemporaryDirectory() as folder:
        results = report.measure(
            torch.device(device),
            Path(folder),
            options.parts,
            ["tiny"] if options.tiny else options.shapes,
            tiny=options.tiny,
        )
    print(f"wrote {report.write(results, options.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
