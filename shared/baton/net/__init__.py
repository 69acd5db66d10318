"""Sockets between services: codec, handshake, keys, discovery, topology."""
