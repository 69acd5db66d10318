"""`baton topology`: prints the links between the services as a Mermaid diagram."""

from __future__ import annotations

from baton.net.topology import mermaid


def main() -> None:
    """Print the diagram; a test compares it with the copy in ARCHITECTURE.md."""
    print(mermaid(), end="")


if __name__ == "__main__":
    main()
