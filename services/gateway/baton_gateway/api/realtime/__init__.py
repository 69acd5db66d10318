"""Live transcription over a WebSocket."""
