"""Executors: a forward pass on one rank, or on a leader and its followers."""
