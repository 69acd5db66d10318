"""Checkpoint loading: files to the weights of a model's layers."""
