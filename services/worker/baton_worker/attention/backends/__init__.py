"""Attention backends, one file each, and code that several share."""
