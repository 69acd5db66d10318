"""`baton topology`: prints the links between the services as a Mermaid diagram."""

from __future__ import annotations

import sys

from baton.errors import BatonError
from baton.net.topology import mermaid
from baton.process.lifecycle import fail
from baton.settings import Settings


class Topology(Settings, prefix="topology"):
    """Print the links between the services as a Mermaid diagram."""


def main() -> None:
    """Print the diagram; a test compares it with the copy in ARCHITECTURE.md."""
    try:
        Topology.load(sys.argv[1:])
    except BatonError as error:
        fail("baton topology", error)
    print(mermaid(), end="")


if __name__ == "__main__":
    main()
