"""Quantised checkpoints: one file per method, and what they share."""
