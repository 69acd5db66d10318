"""`baton keys`: creates CURVE key pairs, which authenticate services on different hosts.

baton keys                           a pair for every service without one, in .baton/keys
baton keys --folder /etc/baton/keys
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zmq.auth import create_certificates

from baton.errors import BatonError, SettingsError
from baton.process.lifecycle import fail
from baton.settings import SERVICES, Settings


class Options(Settings, prefix="keys"):
    """Create a CURVE key pair for every service without one."""

    folder: Path = Path(".baton/keys")
    """Where the keys are written. Give each host all `.key` files and its own `.key_secret`."""


def make(folder: Path) -> list[str]:
    """Write the missing pairs and return their services. Never replaces half of a pair."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"Cannot make --folder {folder}: {error.strerror}.") from error
    missing = [s for s in SERVICES if not (folder / f"{s}.key").exists()]
    for service in missing:
        if (folder / f"{service}.key_secret").exists():
            raise SettingsError(f"{folder} holds a secret key of {service} without its public key.")
        _pair(folder, service)
    return missing


def _pair(folder: Path, service: str) -> None:
    before = os.umask(0o077)
    try:
        create_certificates(folder, service)
    finally:
        os.umask(before)


def main() -> None:
    """Create the keys and print instructions."""
    try:
        options = Options.load(sys.argv[1:])
        names = make(options.folder)
    except BatonError as error:
        fail("baton keys", error)
    print(f"{options.folder}: made {', '.join(names) if names else 'nothing, all pairs exist'}.")
    print(f"Every service reads them with BATON_CURVE_KEYS_DIR={options.folder}")


if __name__ == "__main__":
    main()
