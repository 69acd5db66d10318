"""LoRA adapters by model and name.

loaded --> by_name <--replace--> by_name: new sequences get this one
             |                   |
           unload            the one before
             v                   v
          retired: its sequences finish, then the workers drop it

A name outlives the workers' memory: an adapter that no sequence uses is evicted for others, the
least recently used first, and loaded again for the next sequence that names it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from baton.protocol import AdapterInfo


class AdapterRegistry:
    """Adapters by model and name. Unknown adapters that joining workers report are adopted, so a
    restarted scheduler recovers them."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[str, AdapterInfo]] = {}
        self._retired: dict[str, set[bytes]] = {}
        self._last_use: dict[bytes, int] = {}
        """Digest -> serial number of the last sequence that used it."""
        self.unreadable: set[bytes] = set()
        """Adapters whose files are gone or have changed since they were loaded."""

    def get(self, model: str, name: str) -> AdapterInfo | None:
        """The adapter of a name; None if there is none."""
        return self._by_name.get(model, {}).get(name)

    def listed(self, model: str) -> tuple[AdapterInfo, ...]:
        """All adapters of a model, by name."""
        by_name = self._by_name.get(model, {})
        return tuple(by_name[name] for name in sorted(by_name))

    def by_digest(self, model: str, digest: bytes) -> AdapterInfo | None:
        """A named adapter; None if no name has this content."""
        return next((info for info in self.listed(model) if info.digest == digest), None)

    def used(self, digest: bytes, number: int) -> None:
        """Record that the sequence with this serial number uses an adapter."""
        self._last_use[digest] = number

    def oldest(self, digests: Iterable[bytes]) -> bytes | None:
        """The least recently used of some adapters; None if there are none."""
        return min(digests, key=lambda d: (self._last_use.get(d, 0), d), default=None)

    def add(self, model: str, info: AdapterInfo) -> None:
        """Assign an adapter to a name; the previous one is retired."""
        self.unreadable.discard(info.digest)
        self.remove(model, info.name)
        self._by_name.setdefault(model, {})[info.name] = info
        self._retired.get(model, set()).discard(info.digest)

    def remove(self, model: str, name: str) -> AdapterInfo | None:
        """Retire an adapter, unless it has another name. Returns it."""
        info = self._by_name.get(model, {}).pop(name, None)
        if info is not None and info.digest not in self._digests(model):
            self._retired.setdefault(model, set()).add(info.digest)
        return info

    def joined(self, model: str, infos: Iterable[AdapterInfo]) -> list[AdapterInfo]:
        """A worker has joined with these adapters. Returns the ones that it lacks, most recently
        used first."""
        theirs = {info.name: info for info in infos}
        digests = {info.digest for info in infos}
        for info in theirs.values():
            if info.digest not in self._retired.get(model, ()) and not self.get(model, info.name):
                self._by_name.setdefault(model, {})[info.name] = info
        strange = digests - self._digests(model)
        self._retired.setdefault(model, set()).update(strange)
        lacking = [info for info in self.listed(model) if info.digest not in digests]
        return sorted(lacking, key=lambda info: -self._last_use.get(info.digest, 0))

    def unused(self, model: str, used: Container[bytes]) -> list[bytes]:
        """Remove and return the retired adapters of a model that are not used."""
        retired = self._retired.get(model, set())
        unused = sorted(digest for digest in retired if digest not in used)
        retired.difference_update(unused)
        for digest in unused:
            self._last_use.pop(digest, None)
        return unused

    @property
    def waiting(self) -> list[str]:
        """Models that have retired adapters."""
        return [model for model, retired in self._retired.items() if retired]

    def _digests(self, model: str) -> set[bytes]:
        return {info.digest for info in self._by_name.get(model, {}).values()}

    def layout(self) -> bytes:
        """All of it as bytes, for the state's digest."""
        retired = sorted((model, sorted(digests)) for model, digests in self._retired.items())
        use = sorted(self._last_use.items()), sorted(self.unreadable)
        return repr((sorted(self._by_name.items()), retired, use)).encode()
