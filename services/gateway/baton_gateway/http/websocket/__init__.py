"""WebSockets (RFC 6455): which requests open one, and the connection that it becomes."""
