"""Layers over the frames of sounds."""
