"""GGUF files: metadata, tensor data, and the names of each family."""
