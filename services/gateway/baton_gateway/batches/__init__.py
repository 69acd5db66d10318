"""Batches: the requests of a file, run as ordinary requests after all others."""
