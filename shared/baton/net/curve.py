"""CURVE keys (CurveZMQ, RFC 26): who a service is on the wire, and whom its sockets let in.

One pair per service, all replicas alike. A folder holds every public half (`worker.key`) and the
secret half of whoever reads it (`worker.key_secret`); `baton keys --folder FOLDER` makes them.
A link lets in the service that it is for, its own server (which probes itself), and nobody else.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zmq
from zmq.auth import load_certificate
from zmq.auth.thread import ThreadAuthenticator

from baton.errors import SettingsError
from baton.net.topology import Link
from baton.settings import Settings

_KEY_BYTES = 40
"""A key in Z85 (RFC 32)."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """The keys that one service works with."""

    folder: Path
    service: str
    public: bytes
    secret: bytes

    @classmethod
    def load(cls, folder: Path, service: str) -> CurveKeys:
        """Read the pair of `service`.

        Raises:
            SettingsError: a half is missing, empty or damaged, or anyone may read the secret.
        """
        path = folder / f"{service}.key_secret"
        public, secret = _read(path)
        if secret is None or len(secret) != _KEY_BYTES:
            raise SettingsError(f"{path} holds no secret key. Make the keys with: baton keys")
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o027:  # A secret that Kubernetes mounts is readable by its group.
            raise SettingsError(f"{path} must have mode 0600 or 0440, it has {mode:04o}.")
        return cls(folder, service, public, secret)

    def connect(self, socket: zmq.Socket[bytes], link: Link) -> None:
        """Make a socket, before it connects, speak to nobody but the server of `link`."""
        socket.curve_serverkey = _read(self.folder / f"{link.server}.key")[0]
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret

    def bind(self, socket: zmq.Socket[bytes], link: Link) -> None:
        """Make a socket, before it binds, listen to nobody but the client of `link`.

        `ZAP_ENFORCE_DOMAIN` is what makes it fail closed: without it a socket whose
        authenticator is gone lets everybody in.
        """
        allowed = {_read(self.folder / f"{role}.key")[0] for role in (link.client, link.server)}
        _authenticator().configure_curve_callback(link.name, _Allowed(frozenset(allowed)))
        socket.curve_secretkey, socket.curve_server = self.secret, True
        socket.zap_domain = link.name.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The public keys that one link lets in."""

    keys: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self.keys


@cache
def _authenticator() -> ThreadAuthenticator:
    """The one that answers for all sockets of this process: ZeroMQ has one place for it."""
    authenticator = ThreadAuthenticator(zmq.Context.instance())
    authenticator.start()
    return authenticator


def own_keys(settings: Settings) -> CurveKeys | None:
    """The keys of the service whose settings these are; None when links are not encrypted."""
    if settings.curve_keys_dir is None:
        return None
    return CurveKeys.load(settings.curve_keys_dir, settings.prefix)


def _read(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = load_certificate(path)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{error}. Make the keys with: baton keys") from error
    if len(public) != _KEY_BYTES:
        raise SettingsError(f"{path} holds no public key. Make the keys with: baton keys")
    return public, secret
