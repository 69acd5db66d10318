"""Digests of weight files, by which all workers know that they have the same."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from baton.checkpoint.gguf_projector import read_projector
from baton.errors import ModelError
from baton.protocol import WeightSource

_READ_BYTES = 1 << 20
_CONFIGS = ("config.json", "generation_config.json")


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file. Raises `ModelError`."""
    total = sha256()
    try:
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                total.update(data)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    return total.digest()


def source_of(path: Path, expected: Mapping[str, str] | None = None) -> WeightSource:
    """The weights at a path, with the digest of all that is read of them.

    Args:
        expected: file name -> SHA-256 in hexadecimal digits.

    Raises:
        ModelError: there are no weights, or contents are not the expected ones.
    """
    files, whole = _files(path)
    hashes = {file.name: file_digest(file) for file in files}
    for name, digits in (expected or {}).items():
        if name not in hashes:
            raise ModelError(f"There is no {name} among the weights of {path}.")
        if hashes[name].hex() != digits.lower():
            raise ModelError(f"{name} of {path} has SHA-256 {hashes[name].hex()}, not {digits}.")
    if len(files) == 1 and files[0] == path:
        return WeightSource(str(path), hashes[path.name], whole)
    total = sha256()
    for name, digest in sorted(hashes.items()):
        total.update(name.encode() + b"\0" + digest)
    return WeightSource(str(path), total.digest(), whole)


def check(source: WeightSource) -> None:
    """Raises `ModelError` unless the files of a source have the contents that it announces."""
    if source_of(Path(source.path)).digest != source.digest:
        raise ModelError(f"{source.path} has changed since it was received. Send it again.")


def _files(path: Path) -> tuple[list[Path], bool]:
    """The files of weights at a path, and whether they are a whole checkpoint."""
    if path.is_file() and path.suffix == ".gguf":
        return [path, *_encoder(path)], True
    if path.is_file() and path.suffix == ".safetensors":
        return [path], False
    if not path.is_dir():
        raise ModelError(
            f"{path} is no checkpoint folder, .safetensors file or .gguf file that a worker sees."
        )
    files = sorted(path.glob("*.safetensors"))
    if not files or not (path / _CONFIGS[0]).is_file():
        raise ModelError(f"{path} has no config.json and .safetensors files.")
    configs = [path / name for name in (*_CONFIGS, "model.safetensors.index.json")]
    return [*files, *(file for file in configs if file.is_file())], True


def _encoder(path: Path) -> list[Path]:
    """The file of the encoder that is loaded with a GGUF file, if any."""
    try:
        projector = read_projector(path)
    except ModelError:  # `open_gguf` says why, and loads the language model alone.
        return []
    return [] if projector is None else [projector.path]
