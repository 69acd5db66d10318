"""Vocabularies: loading them from every format, and the bytes of each token."""
