"""Attention layers over the paged KV cache."""
