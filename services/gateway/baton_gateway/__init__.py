"""HTTP server of Baton: OpenAI-compatible API on top of typed messages."""
