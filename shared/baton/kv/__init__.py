"""Page hashes and page groups of the KV cache."""
