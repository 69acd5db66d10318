"""WebSockets (RFC 6455): the handshake and the connection."""
