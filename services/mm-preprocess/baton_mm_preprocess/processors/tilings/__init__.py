"""Tiles and slices of models whose processors transformers does not have."""
