"""Trained draft heads: modules of a `spec.DraftHead`, beside the target whose states they read."""
