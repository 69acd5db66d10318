"""`baton topology`: the links between the services, as a Mermaid diagram."""

from __future__ import annotations

from baton.net.topology import mermaid


def main() -> None:
    """Print the diagram; ARCHITECTURE.md holds a copy that a test compares."""
    print(mermaid(), end="")


if __name__ == "__main__":
    main()
