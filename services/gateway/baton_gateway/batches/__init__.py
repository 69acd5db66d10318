"""Batches: the requests of a file, run as ordinary requests behind all others."""
