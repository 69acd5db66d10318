"""CURVE keys (CurveZMQ, RFC 26): identity of a service, and the peers that its sockets accept.

There is one key pair per service, equal in all replicas. A folder holds all public keys
(`worker.key`) and the secret keys that its reader may use (`worker.key_secret`); `baton keys
--folder FOLDER` creates them. A link accepts its client service and its own server, which probes
itself, and no other peer.
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
"""Length of a key in Z85 (RFC 32)."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Key pair of one service and the public keys of the others."""

    folder: Path
    service: str
    public: bytes
    secret: bytes

    @classmethod
    def load(cls, folder: Path, service: str) -> CurveKeys:
        """Read the key pair of `service`.

        Raises:
            SettingsError: a key is missing, empty or damaged, or the secret is readable by anyone.
        """
        path = folder / f"{service}.key_secret"
        public, secret = _read(path)
        if secret is None or len(secret) != _KEY_BYTES:
            raise SettingsError(f"{path} holds no secret key. Make the keys with: baton keys")
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o027:  # Kubernetes mounts secrets readable by the group.
            raise SettingsError(f"{path} must have mode 0600 or 0440, it has {mode:04o}.")
        return cls(folder, service, public, secret)

    def connect(self, socket: zmq.Socket[bytes], link: Link) -> None:
        """Make a socket accept only the server of `link`. Call it before the socket connects."""
        socket.curve_serverkey = _read(self.folder / f"{link.server}.key")[0]
        socket.curve_publickey, socket.curve_secretkey = self.public, self.secret

    def bind(self, socket: zmq.Socket[bytes], link: Link) -> None:
        """Make a socket accept only the client of `link`. Call it before the socket binds.

        `ZAP_ENFORCE_DOMAIN` makes it fail closed: without it, a socket whose authenticator has
        ended accepts every peer.
        """
        allowed = {_read(self.folder / f"{role}.key")[0] for role in (link.client, link.server)}
        _authenticator().configure_curve_callback(link.name, _Allowed(frozenset(allowed)))
        socket.curve_secretkey, socket.curve_server = self.secret, True
        socket.zap_domain = link.name.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Public keys that a link accepts."""

    keys: frozenset[bytes]

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self.keys


@cache
def _authenticator() -> ThreadAuthenticator:
    """The authenticator of this process; ZeroMQ allows one per context."""
    authenticator = ThreadAuthenticator(zmq.Context.instance())
    authenticator.start()
    return authenticator


def own_keys(settings: Settings) -> CurveKeys | None:
    """Keys of the service with these settings; None if links are not encrypted."""
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
