"""Benchmarks: load generators, peer systems, plots."""
