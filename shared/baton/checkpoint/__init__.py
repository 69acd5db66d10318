"""Readers of checkpoint files that several services use."""
