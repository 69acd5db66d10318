"""Steps that are launched before the one before them has been read: vLLM's async scheduling."""
