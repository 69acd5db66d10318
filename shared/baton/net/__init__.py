"""Network between services: sockets, codec, handshake, CURVE keys, discovery, topology."""
