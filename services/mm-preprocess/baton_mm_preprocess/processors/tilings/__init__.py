"""Tiles and slices of models whose processors are not in transformers."""
