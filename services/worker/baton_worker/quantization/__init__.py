"""Quantised checkpoints: one file per method, plus shared code."""
