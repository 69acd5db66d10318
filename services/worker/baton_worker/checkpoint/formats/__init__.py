"""File formats of checkpoints, but for GGUF."""
