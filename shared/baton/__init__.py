"""Code shared by all Baton services: protocol, network, settings, registries, life cycle."""

__version__ = "0.1.0"
