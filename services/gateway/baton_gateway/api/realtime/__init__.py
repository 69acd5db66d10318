"""Live transcripts over a WebSocket."""
