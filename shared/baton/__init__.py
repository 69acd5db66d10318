"""What every Baton service shares: messages, wire, settings, registries, life cycle."""

__version__ = "0.1.0"
